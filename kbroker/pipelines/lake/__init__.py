"""The lake archiver: topics to Parquet files by date and hour, each record exactly once.

What lies where is in `layout`; how a batch becomes files that a kill cannot double or tear, in
`commits`; reading a lake without Spark, in `reading`.
"""
