"""Files of prompts: their lines, the options of single prompts, and the output records."""
