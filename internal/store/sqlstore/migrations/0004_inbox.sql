-- In the order in which the inbox is paged.
DROP INDEX approvals_by_state;
CREATE INDEX approvals_by_state ON approvals (tenant, state, id);
