"""Results for other tools: CSV, Parquet, JUnit XML, OpenMetrics, TFLite's benchmark JSON."""
