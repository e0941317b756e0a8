"""What an open model teaches about a closed one."""
