-- Lists show the cost of each run without reading its log. The rows of older stores are derived again.
ALTER TABLE limpet_streams ADD COLUMN cost REAL NOT NULL DEFAULT 0;
