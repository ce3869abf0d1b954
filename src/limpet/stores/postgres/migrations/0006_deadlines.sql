-- A request cannot be answered after its run's deadline, which may be extended.
ALTER TABLE {schema}.streams ADD COLUMN deadline BIGINT;
