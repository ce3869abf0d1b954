-- Lists show the cost of each run without reading its log. The rows of older stores are derived again.
ALTER TABLE {schema}.streams ADD COLUMN cost DOUBLE PRECISION NOT NULL DEFAULT 0;
