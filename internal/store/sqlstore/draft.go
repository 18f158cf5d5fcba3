package sqlstore

import (
	"context"
	"maps"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// heldDraft is the answer to HoldDraft.
type heldDraft struct {
	run      holdpoint.Run
	approval holdpoint.Approval
}

// HoldDraft implements store.Runs. Drafts of different runs that come at the same time share a transaction.
func (s *Store) HoldDraft(ctx context.Context, d store.Draft) (holdpoint.Run, holdpoint.Approval, error) {
	h, err := s.drafts.do(ctx, d)
	if err == nil && len(d.Messages) > 0 {
		s.hint("messages")
	}
	return h.run, h.approval, err
}

func (s *Store) holdDrafts(ctx context.Context, t *tx, list []store.Draft, out []heldDraft, refused []error) error {
	refs := make([]runRef, len(list))
	for i, d := range list {
		refs[i] = runRef{d.Fence.Tenant, d.Fence.RunID}
	}
	runs, now, err := t.lockRuns(ctx, refs)
	if err != nil {
		return err
	}
	m := draftMover{mover: mover{tx: t, now: now}}
	for i, d := range list {
		run := runs[runRef{d.Fence.Tenant, d.Fence.RunID}]
		if run == nil {
			refused[i] = noRun(d.Fence.RunID)
			continue
		}
		if repeated(d.Fence, *run) {
			out[i].run = *run
			if out[i].approval, err = t.lastApproval(ctx, *run); err != nil {
				return err
			}
			continue
		}
		if refused[i] = m.hold(run, d, &out[i].approval); refused[i] == nil {
			out[i].run = *run
		}
	}
	return m.flush(ctx)
}

// draftMover holds drafts, with the rows that they bring.
type draftMover struct {
	mover
	drafts, planned, approvals, challenges [][]any
}

var (
	draftRows = columns(`tenant text, run_id text, revision bigint, output_hash text, model text, policy_hash text, output bytes, source_url bytes,
 created_at bigint`)
	plannedRows = columns(`tenant text, id text, run_id text, workflow text, revision bigint, ord bigint, slot text, type text, connector text,
 connector_version text, provider text, consequence text, target_index text, payload_hash text, provider_key text, reference text, after_slots text,
 reversible text, target bytes, payload bytes`)
	approvalRows = columns(`tenant text, id text, run_id text, workflow text, revision bigint, digest text, policy_hash text, state text, kind text,
 why text, roles text, quorum bigint, assurance text, allowed text, version bigint, execute_within_us bigint, created_at bigint, approve_by bigint`)
	challengeRows = columns("tenant text, id text, approval_id text, email text, channel text, expires_at bigint")
)

// hold moves one locked run to its people, or says why it cannot.
func (m *draftMover) hold(run *holdpoint.Run, d store.Draft, approval *holdpoint.Approval) error {
	f := d.Fence
	if err := owned(f, *run, m.now); err != nil {
		return err
	}
	if d.Draft.Revision != run.Revision+1 || d.Approval.Revision != d.Draft.Revision {
		return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "run %s has draft revision %d; render the draft as the next one", run.ID, run.Revision).
			With("draft_revision", run.Revision)
	}
	from := run.State
	if err := m.moveRun(run, runMove{to: holdpoint.RunAwaitingHuman, trigger: "hold", call: f.Call, revision: d.Draft.Revision, handed: true}); err != nil {
		return err
	}
	m.who = d.Who
	m.draft(d)
	*approval = m.approval(d)
	accepted := runEvent("draft.accepted", d.Who, from, *run, nil)
	maps.Copy(accepted.data, d.Data)
	accepted.data["draft_revision"], accepted.data["output_hash"] = d.Draft.Revision, d.Draft.OutputHash
	m.events = append(m.events, accepted)
	m.note("approval.created", f.Tenant, f.RunID, map[string]any{
		"approval_id": approval.ID, "draft_revision": approval.Revision, "digest": approval.Digest, "policy_version": approval.PolicyHash,
		"kind": approval.Kind, "why": approval.Why, "roles": approval.Roles, "quorum": approval.Quorum, "assurance": approval.Assurance,
		"approve_by": approval.ApproveBy}, nil)
	for _, c := range d.Challenges {
		m.challenges = append(m.challenges, []any{f.Tenant, c.ID, approval.ID, c.Email, c.Channel, approval.ApproveBy.UnixMicro()})
		m.note("challenge.created", f.Tenant, f.RunID, map[string]any{
			"challenge_id": c.ID, "approval_id": approval.ID, "channel": c.Channel, "expires_at": approval.ApproveBy}, nil)
	}
	m.messages = append(m.messages, d.Messages...)
	return nil
}

// draft stores a draft and the effects that policy rendered from it. They stand beside the outbox, where no dispatcher
// looks, until a decision releases them (I1).
func (m *draftMover) draft(d store.Draft) {
	f := d.Fence
	m.drafts = append(m.drafts, []any{f.Tenant, f.RunID, int64(d.Draft.Revision), d.Draft.OutputHash, text(d.Draft.Model), d.Draft.PolicyHash,
		d.Output, d.SourceURL, m.now.UnixMicro()})
	for _, e := range d.Effects {
		after := "[]"
		if len(e.After) > 0 {
			after = text(e.After)
		}
		var reversible any
		if e.Reversible != nil {
			reversible = text(e.Reversible)
		}
		m.planned = append(m.planned, []any{f.Tenant, e.ID, f.RunID, e.Workflow, int64(d.Draft.Revision), int64(e.Order), e.Slot, e.Type, e.Connector,
			e.ConnectorVersion, e.Provider, e.Consequence, e.TargetIndex, e.PayloadHash, e.ProviderKey, e.Reference, after, reversible,
			e.Target, e.Payload})
	}
}

// approval stores the question about a draft; it and everyone's way in end at the same instant.
func (m *draftMover) approval(d store.Draft) holdpoint.Approval {
	a := d.Approval
	a.Tenant, a.RunID, a.State, a.Version = d.Fence.Tenant, d.Fence.RunID, holdpoint.ApprovalPending, 1
	a.CreatedAt, a.ApproveBy, a.ExecuteBy, a.DecidedAt = m.now, m.now.Add(d.ApproveBy).Truncate(time.Microsecond), nil, nil
	if a.Roles == nil {
		a.Roles = []string{}
	}
	if a.Allowed == nil {
		a.Allowed = []holdpoint.Decision{}
	}
	m.approvals = append(m.approvals, []any{a.Tenant, a.ID, a.RunID, a.Workflow, int64(a.Revision), a.Digest, a.PolicyHash, string(a.State), a.Kind, a.Why,
		text(a.Roles), int64(a.Quorum), a.Assurance, text(a.Allowed), a.Version, micros(time.Duration(a.ExecuteWithin)), m.now.UnixMicro(), a.ApproveBy.UnixMicro()})
	return a
}

// flush writes everything.
func (m *draftMover) flush(ctx context.Context) error {
	for _, table := range []struct {
		name string
		of   layout
		rows [][]any
	}{{"drafts", draftRows, m.drafts}, {"planned_effects", plannedRows, m.planned}, {"approvals", approvalRows, m.approvals}, {"challenges", challengeRows, m.challenges}} {
		if err := m.insert(ctx, table.name, table.of, table.rows); err != nil {
			return err
		}
	}
	return m.mover.flush(ctx)
}
