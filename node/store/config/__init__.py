"""Files of `config/`, RocketMQ's tables in JSON, in the memory of the process that owns each."""
