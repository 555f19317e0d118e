"""What is done with the tables: functions from DataFrames to DataFrames, which start nothing."""
