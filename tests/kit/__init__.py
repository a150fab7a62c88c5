"""What tests are made of: problems, configs, measurements, tables and catalogs, built in one line each."""
