"""What both versions of fully sharded data parallelism share."""
