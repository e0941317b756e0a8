"""Is a picture of the usual kind, and do the answers still look like those the profile was fitted on?"""
