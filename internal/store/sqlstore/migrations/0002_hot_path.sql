-- Indexes for what every effect and run passes through, and room on PostgreSQL's pages for rows that move.

-- In the order in which effects are leased.
DROP INDEX effects_due;
CREATE INDEX effects_due ON effects (next_attempt_at, id) WHERE state = 'pending' AND hold = '';

-- Asked for completed effects only.
DROP INDEX effects_by_target;
CREATE INDEX effects_by_target ON effects (tenant, type, target_index) WHERE state = 'completed';

{{postgres}} ALTER TABLE effects DROP CONSTRAINT effects_tenant_run_id_type_target_index_slot_key;
{{postgres}} ALTER TABLE effects SET (fillfactor = 80);
{{postgres}} ALTER TABLE runs SET (fillfactor = 80);
