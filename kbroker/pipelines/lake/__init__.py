"""Lake archiver: writes topics to Parquet files by date and hour, each record exactly once.

`layout` defines paths and file names, `commits` makes batches atomic, and `reading` reads a lake
without Spark.
"""
