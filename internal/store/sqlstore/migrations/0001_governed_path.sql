-- The governed path. One text for SQLite and PostgreSQL: {{bytes}} is BLOB or BYTEA. Instants are microseconds UTC.
-- Booleans are BIGINT 0 or 1, lists and objects are JSON text, hashes are hex text. {{bytes}} columns are sealed
-- content or wrapped keys, but for none other.

CREATE TABLE tenants (
  tenant        TEXT PRIMARY KEY,
  effect_key    {{bytes}} NOT NULL,
  index_key     {{bytes}} NOT NULL,
  active_policy TEXT NOT NULL DEFAULT '',
  event_seq     BIGINT NOT NULL DEFAULT 0,
  created_at    BIGINT NOT NULL
);

CREATE TABLE policies (
  tenant     TEXT NOT NULL REFERENCES tenants (tenant),
  hash       TEXT NOT NULL,
  document   TEXT NOT NULL,
  files      TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  PRIMARY KEY (tenant, hash)
);

CREATE TABLE runs (
  tenant           TEXT NOT NULL REFERENCES tenants (tenant),
  id               TEXT NOT NULL,
  workflow         TEXT NOT NULL,
  scope            TEXT NOT NULL,
  key              TEXT NOT NULL,
  key_hmac         TEXT NOT NULL,
  key_flag         TEXT NOT NULL,
  operation        TEXT,
  record           TEXT,                     -- the operation's record, for search
  state            TEXT NOT NULL,
  reason           TEXT NOT NULL,
  failure_class    TEXT NOT NULL DEFAULT '',
  version          BIGINT NOT NULL,
  fingerprint      TEXT NOT NULL,
  fingerprint_rule TEXT NOT NULL,
  ignore_pointers  TEXT NOT NULL,
  policy_hash      TEXT NOT NULL,
  lease_owner      TEXT NOT NULL,
  lease_expires_at BIGINT,
  lease_cap_at     BIGINT,
  claimed_at       BIGINT,
  worked_us        BIGINT,                   -- claim to hand-over of the last lease, for lease sizes
  execution_id     TEXT NOT NULL,
  trigger_source   TEXT NOT NULL,
  workflow_version TEXT NOT NULL,
  delivery_id      TEXT NOT NULL,
  attempts         BIGINT NOT NULL,
  attempt_limit    BIGINT NOT NULL,
  round            BIGINT NOT NULL,
  steals           BIGINT NOT NULL DEFAULT 0,
  steal_cap        BIGINT NOT NULL,
  duplicates       BIGINT NOT NULL DEFAULT 0,
  duplicates_noted BIGINT NOT NULL DEFAULT 0, -- how many of them have become events
  last_duplicate   BIGINT,
  mismatches       BIGINT NOT NULL DEFAULT 0,
  retry_at         BIGINT,
  claimable_noted  BIGINT NOT NULL DEFAULT 0, -- run.claimable was written for this retry_at
  budget_until     BIGINT,
  revision         BIGINT NOT NULL DEFAULT 0,
  repairs          BIGINT NOT NULL DEFAULT 0,
  replaces         TEXT NOT NULL DEFAULT '',
  replaced_by      TEXT NOT NULL DEFAULT '',
  last_call        TEXT NOT NULL DEFAULT '',
  event_seq        BIGINT NOT NULL DEFAULT 0,
  run_key          {{bytes}} NOT NULL,
  payload          {{bytes}},
  initiator        {{bytes}},
  resume_url       {{bytes}},
  result           {{bytes}},
  fail_text        {{bytes}},
  created_at       BIGINT NOT NULL,
  updated_at       BIGINT NOT NULL,
  ended_at         BIGINT,
  PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX runs_identity ON runs (tenant, scope, key_hmac);
CREATE INDEX runs_by_state ON runs (tenant, state, id);
CREATE INDEX runs_by_workflow ON runs (tenant, workflow, id);
CREATE INDEX runs_by_record ON runs (tenant, record, id) WHERE record IS NOT NULL;
CREATE INDEX runs_by_key ON runs (tenant, key);
CREATE INDEX runs_expiring ON runs (lease_expires_at) WHERE state = 'processing';
CREATE INDEX runs_retrying ON runs (retry_at) WHERE state = 'failed_retryable';
CREATE INDEX runs_last_duplicate ON runs (last_duplicate) WHERE duplicates > duplicates_noted;

CREATE TABLE steps (
  tenant        TEXT NOT NULL,
  run_id        TEXT NOT NULL,
  name          TEXT NOT NULL,
  state         TEXT NOT NULL,
  side_effect   BIGINT NOT NULL,
  input_hash    TEXT NOT NULL,
  result_hash   TEXT NOT NULL DEFAULT '',
  failure_class TEXT NOT NULL DEFAULT '',
  lease_version BIGINT NOT NULL,
  begins        BIGINT NOT NULL,
  result        {{bytes}},
  updated_at    BIGINT NOT NULL,
  PRIMARY KEY (tenant, run_id, name),
  FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, id)
);

CREATE TABLE drafts (
  tenant      TEXT NOT NULL,
  run_id      TEXT NOT NULL,
  revision    BIGINT NOT NULL,
  output_hash TEXT NOT NULL,
  model       TEXT NOT NULL,
  policy_hash TEXT NOT NULL,
  output      {{bytes}},
  source_url  {{bytes}},
  created_at  BIGINT NOT NULL,
  PRIMARY KEY (tenant, run_id, revision),
  FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, id)
);

-- What policy rendered, before its release: replaced with the revision, never leased.
CREATE TABLE planned_effects (
  tenant            TEXT NOT NULL,
  run_id            TEXT NOT NULL,
  revision          BIGINT NOT NULL,
  ord               BIGINT NOT NULL,
  id                TEXT NOT NULL,
  workflow          TEXT NOT NULL,
  slot              TEXT NOT NULL,
  type              TEXT NOT NULL,
  connector         TEXT NOT NULL,
  connector_version TEXT NOT NULL,
  provider          TEXT NOT NULL,
  consequence       TEXT NOT NULL,
  target_index      TEXT NOT NULL,
  payload_hash      TEXT NOT NULL,
  provider_key      TEXT NOT NULL,
  reference         TEXT NOT NULL,
  after_slots       TEXT NOT NULL,
  reversible        TEXT,
  target            {{bytes}} NOT NULL,
  payload           {{bytes}} NOT NULL,
  PRIMARY KEY (tenant, run_id, revision, ord),
  FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, id)
);

CREATE TABLE approvals (
  tenant            TEXT NOT NULL,
  id                TEXT NOT NULL,
  run_id            TEXT NOT NULL,
  workflow          TEXT NOT NULL,
  revision          BIGINT NOT NULL,
  digest            TEXT NOT NULL,
  policy_hash       TEXT NOT NULL,
  state             TEXT NOT NULL,
  kind              TEXT NOT NULL,
  why               TEXT NOT NULL,
  roles             TEXT NOT NULL,
  quorum            BIGINT NOT NULL,
  assurance         TEXT NOT NULL,
  allowed           TEXT NOT NULL,
  version           BIGINT NOT NULL,
  execute_within_us BIGINT NOT NULL,
  created_at        BIGINT NOT NULL,
  approve_by        BIGINT NOT NULL,
  execute_by        BIGINT,
  decided_at        BIGINT,
  PRIMARY KEY (tenant, id),
  FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, id)
);
CREATE INDEX approvals_by_state ON approvals (tenant, state, approve_by);
CREATE INDEX approvals_by_run ON approvals (tenant, run_id);
CREATE INDEX approvals_due ON approvals (approve_by) WHERE state = 'pending';

CREATE TABLE challenges (
  tenant      TEXT NOT NULL,
  id          TEXT NOT NULL,
  approval_id TEXT NOT NULL,
  email       TEXT NOT NULL,
  channel     TEXT NOT NULL,
  expires_at  BIGINT NOT NULL,
  opened_at   BIGINT,
  used_at     BIGINT,
  revoked_at  BIGINT,
  PRIMARY KEY (tenant, id),
  UNIQUE (tenant, approval_id, email, channel),
  FOREIGN KEY (tenant, approval_id) REFERENCES approvals (tenant, id)
);

-- A token is minted when its message leaves, so each delivery of one challenge may carry its own.
CREATE TABLE challenge_tokens (
  token_hash   TEXT PRIMARY KEY,
  tenant       TEXT NOT NULL,
  challenge_id TEXT NOT NULL,
  created_at   BIGINT NOT NULL,
  FOREIGN KEY (tenant, challenge_id) REFERENCES challenges (tenant, id)
);

CREATE TABLE decisions (
  tenant       TEXT NOT NULL,
  id           TEXT NOT NULL,
  approval_id  TEXT NOT NULL,
  run_id       TEXT NOT NULL,
  digest       TEXT NOT NULL,
  person_id    TEXT NOT NULL,
  email        TEXT NOT NULL,
  decision     TEXT NOT NULL,
  assurance    TEXT NOT NULL,
  how          TEXT NOT NULL,
  challenge_id TEXT NOT NULL,
  reason_text  {{bytes}},
  created_at   BIGINT NOT NULL,
  PRIMARY KEY (tenant, id),
  UNIQUE (tenant, approval_id, digest, person_id),
  FOREIGN KEY (tenant, approval_id) REFERENCES approvals (tenant, id)
);

-- The outbox.
CREATE TABLE effects (
  tenant             TEXT NOT NULL,
  id                 TEXT NOT NULL,
  run_id             TEXT NOT NULL,
  approval_id        TEXT NOT NULL,
  revision           BIGINT NOT NULL,
  ord                BIGINT NOT NULL,
  workflow           TEXT NOT NULL,
  slot               TEXT NOT NULL,
  type               TEXT NOT NULL,
  connector          TEXT NOT NULL,
  connector_version  TEXT NOT NULL,
  provider           TEXT NOT NULL,
  consequence        TEXT NOT NULL,
  target_index       TEXT NOT NULL,
  payload_hash       TEXT NOT NULL,
  provider_key       TEXT NOT NULL,
  reference          TEXT NOT NULL,
  after_slots        TEXT NOT NULL,
  reversible         TEXT,
  target             {{bytes}} NOT NULL,
  payload            {{bytes}} NOT NULL,
  state              TEXT NOT NULL,
  hold               TEXT NOT NULL DEFAULT '',
  held_at            BIGINT,
  reason             TEXT NOT NULL DEFAULT '',
  possibly_committed BIGINT NOT NULL DEFAULT 0,
  failure_class      TEXT NOT NULL DEFAULT '',
  version            BIGINT NOT NULL DEFAULT 1,
  attempts           BIGINT NOT NULL DEFAULT 0,
  spent              BIGINT NOT NULL DEFAULT 0,
  first_attempt_at   BIGINT,
  next_attempt_at    BIGINT NOT NULL,
  execute_by         BIGINT NOT NULL,
  provider_id        TEXT NOT NULL DEFAULT '',
  wire_hash          TEXT NOT NULL DEFAULT '',
  send_before        BIGINT,
  lookups            BIGINT NOT NULL DEFAULT 0,
  absent_reads       BIGINT NOT NULL DEFAULT 0,
  absent_resends     BIGINT NOT NULL DEFAULT 0,
  next_lookup_at     BIGINT,
  unknown_since      BIGINT,
  lease_owner        TEXT NOT NULL DEFAULT '',
  lease_expires_at   BIGINT,
  created_at         BIGINT NOT NULL,
  updated_at         BIGINT NOT NULL,
  PRIMARY KEY (tenant, id),
  UNIQUE (tenant, run_id, slot),
  UNIQUE (tenant, run_id, type, target_index, slot),
  FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, id)
);
CREATE INDEX effects_due ON effects (next_attempt_at) WHERE state = 'pending' AND hold = '';
CREATE INDEX effects_expiring ON effects (execute_by) WHERE state = 'pending' AND hold = '';
CREATE INDEX effects_held ON effects (tenant, hold) WHERE state = 'pending' AND hold <> '';
CREATE INDEX effects_sending ON effects (lease_expires_at) WHERE state = 'sending';
CREATE INDEX effects_unknown ON effects (next_lookup_at) WHERE state = 'unknown';
CREATE INDEX effects_by_state ON effects (tenant, state, id);
CREATE INDEX effects_by_target ON effects (tenant, type, target_index);

-- One row for each slot that an effect waits for.
CREATE TABLE effect_order (
  tenant     TEXT NOT NULL,
  run_id     TEXT NOT NULL,
  effect_id  TEXT NOT NULL,
  after_slot TEXT NOT NULL,
  PRIMARY KEY (tenant, effect_id, after_slot)
);
CREATE INDEX effect_order_successors ON effect_order (tenant, run_id, after_slot);

CREATE TABLE attempts (
  tenant      TEXT NOT NULL,
  id          TEXT NOT NULL,
  effect_id   TEXT NOT NULL,
  run_id      TEXT NOT NULL,
  number      BIGINT NOT NULL,
  lease_owner TEXT NOT NULL,
  begun_at    BIGINT NOT NULL,
  send_before BIGINT NOT NULL,
  wire_hash   TEXT NOT NULL,
  proof_until BIGINT,                       -- end of the proved key life for this attempt
  result      TEXT NOT NULL DEFAULT '',
  phase       TEXT NOT NULL DEFAULT '',
  class       TEXT NOT NULL DEFAULT '',
  status      BIGINT NOT NULL DEFAULT 0,
  provider_id TEXT NOT NULL DEFAULT '',
  detail      TEXT NOT NULL DEFAULT '',
  settled_at  BIGINT,
  PRIMARY KEY (tenant, id),
  UNIQUE (tenant, effect_id, number),
  FOREIGN KEY (tenant, effect_id) REFERENCES effects (tenant, id)
);
CREATE INDEX attempts_open ON attempts (tenant, begun_at) WHERE settled_at IS NULL;

CREATE TABLE connector_holds (
  tenant    TEXT NOT NULL,
  connector TEXT NOT NULL,
  type      TEXT NOT NULL,
  hold      TEXT NOT NULL,
  detail    TEXT NOT NULL,
  until     BIGINT,
  since     BIGINT NOT NULL,
  PRIMARY KEY (tenant, connector, type)
);

CREATE TABLE proofs (
  tenant      TEXT NOT NULL,
  connector   TEXT NOT NULL,
  version     TEXT NOT NULL,
  key_life_us BIGINT NOT NULL,
  proved_at   BIGINT NOT NULL,
  expires_at  BIGINT NOT NULL,
  PRIMARY KEY (tenant, connector, version)
);

-- Missing rows of scopes global and tenant are off, of narrower scopes inherit. A flip locks the table, begins share it.
CREATE TABLE switches (
  tenant     TEXT NOT NULL,
  scope      TEXT NOT NULL,
  is_on      BIGINT NOT NULL,
  changed_by TEXT NOT NULL,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY (tenant, scope)
);

CREATE TABLE messages (
  tenant           TEXT NOT NULL,
  id               TEXT NOT NULL,
  run_id           TEXT NOT NULL,
  approval_id      TEXT NOT NULL,
  challenge_id     TEXT NOT NULL,
  type             TEXT NOT NULL,
  channel          TEXT NOT NULL,
  email            TEXT NOT NULL,
  data             {{bytes}} NOT NULL,
  state            TEXT NOT NULL,
  attempts         BIGINT NOT NULL DEFAULT 0,
  detail           TEXT NOT NULL DEFAULT '',
  next_at          BIGINT NOT NULL,
  lease_owner      TEXT NOT NULL DEFAULT '',
  lease_expires_at BIGINT,
  created_at       BIGINT NOT NULL,
  delivered_at     BIGINT,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX messages_due ON messages (next_at) WHERE state = 'pending';
CREATE INDEX messages_by_run ON messages (tenant, run_id);

-- Evidence. run_id '' holds the tenant's own events.
CREATE TABLE events (
  tenant     TEXT NOT NULL,
  run_id     TEXT NOT NULL,
  run_seq    BIGINT NOT NULL,
  id         TEXT NOT NULL,
  type       TEXT NOT NULL,
  at         BIGINT NOT NULL,
  actor_kind TEXT NOT NULL,
  actor_id   TEXT NOT NULL,
  actor_how  TEXT NOT NULL,
  data       TEXT NOT NULL,
  content    {{bytes}},                     -- sealed free text that belongs to the event, never evidence itself
  PRIMARY KEY (tenant, run_id, run_seq)
);

CREATE TABLE people (
  tenant      TEXT NOT NULL REFERENCES tenants (tenant),
  id          TEXT NOT NULL,
  email       TEXT NOT NULL,
  password    TEXT NOT NULL,
  must_change BIGINT NOT NULL,
  disabled    BIGINT NOT NULL DEFAULT 0,
  language    TEXT NOT NULL DEFAULT '',
  created_at  BIGINT NOT NULL,
  PRIMARY KEY (tenant, id),
  UNIQUE (tenant, email)
);

CREATE TABLE grants (
  tenant     TEXT NOT NULL,
  person_id  TEXT NOT NULL,
  role       TEXT NOT NULL,
  granted_by TEXT NOT NULL,
  granted_at BIGINT NOT NULL,
  PRIMARY KEY (tenant, person_id, role),
  FOREIGN KEY (tenant, person_id) REFERENCES people (tenant, id)
);

CREATE TABLE api_keys (
  token_hash   TEXT PRIMARY KEY,
  tenant       TEXT NOT NULL REFERENCES tenants (tenant),
  id           TEXT NOT NULL,
  kind         TEXT NOT NULL,
  name         TEXT NOT NULL,
  person_id    TEXT NOT NULL,
  scopes       TEXT NOT NULL,
  created_at   BIGINT NOT NULL,
  last_used_at BIGINT,
  revoked_at   BIGINT,
  UNIQUE (tenant, id)
);

CREATE TABLE sessions (
  token_hash  TEXT PRIMARY KEY,
  tenant      TEXT NOT NULL,
  person_id   TEXT NOT NULL,
  created_at  BIGINT NOT NULL,
  seen_at     BIGINT NOT NULL,
  idle_us     BIGINT NOT NULL,
  expires_at  BIGINT NOT NULL,
  FOREIGN KEY (tenant, person_id) REFERENCES people (tenant, id)
);
CREATE INDEX sessions_by_person ON sessions (tenant, person_id);
