"""The parts of the asyncio client `keelog.aio`: its channel, coalescer and followers."""
