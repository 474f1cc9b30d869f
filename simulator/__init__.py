"""A discrete-event simulator of DataParallel and DistributedDataParallel."""
