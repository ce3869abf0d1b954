-- A request cannot be answered after its run's deadline, which may be extended.
ALTER TABLE limpet_streams ADD COLUMN deadline INTEGER;
