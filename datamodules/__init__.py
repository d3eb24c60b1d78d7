"""Data: records, their readers, and the data modules that recipes name (`datamodules.tasks`)."""
