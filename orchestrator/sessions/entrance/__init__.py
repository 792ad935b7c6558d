"""The calls that `orchestrator.contract` makes: sessions, messages, generations, chats."""
