"""Language models that look at pictures, one file a vendor: OpenAI, all that speak like it, Anthropic, Gemini."""
