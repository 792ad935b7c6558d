"""The pure part of a session: tokens, messages, text and settings. No I/O and no asyncio."""
