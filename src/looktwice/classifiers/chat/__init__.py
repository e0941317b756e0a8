"""Vision-language models, one file per vendor: OpenAI and compatible servers, Anthropic, Gemini."""
