"""What the asyncio client of `keelog.aio` stands on: its channel, coalescer and followers."""
