{{postgres}}
-- A reference costs a query and a lock of the row it names with every row that is inserted, and the locks of
-- simultaneous claims meet on the tenant. The store writes these rows only in a transaction that has locked or made the
-- row they name, and nothing deletes one.
ALTER TABLE runs DROP CONSTRAINT runs_tenant_fkey;
{{postgres}} ALTER TABLE drafts DROP CONSTRAINT drafts_tenant_run_id_fkey;
{{postgres}} ALTER TABLE planned_effects DROP CONSTRAINT planned_effects_tenant_run_id_fkey;
{{postgres}} ALTER TABLE approvals DROP CONSTRAINT approvals_tenant_run_id_fkey;
{{postgres}} ALTER TABLE challenges DROP CONSTRAINT challenges_tenant_approval_id_fkey;
{{postgres}} ALTER TABLE decisions DROP CONSTRAINT decisions_tenant_approval_id_fkey;
{{postgres}} ALTER TABLE effects DROP CONSTRAINT effects_tenant_run_id_fkey;
{{postgres}} ALTER TABLE attempts DROP CONSTRAINT attempts_tenant_effect_id_fkey;
