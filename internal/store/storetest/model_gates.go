package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// approval finds an approval and its run; not_found.
func (m *model) approval(tenant, id string) (*modelRun, *holdpoint.Approval, error) {
	for _, r := range m.sorted(tenant) {
		for i := range r.Approvals {
			if r.Approvals[i].ID == id {
				return r, &r.Approvals[i], nil
			}
		}
	}
	return nil, nil, refused(holdpoint.CodeNotFound)
}

// released are the effects of an approval as they stand.
func (r *modelRun) released(approvalID string) (all []holdpoint.Effect) {
	for _, e := range r.Effects {
		if e.ApprovalID == approvalID {
			all = append(all, e.Effect)
		}
	}
	return all
}

func (m *model) Decide(_ context.Context, d store.Decision) (store.DecisionResult, error) {
	r, a, err := m.approval(d.Tenant, d.ApprovalID)
	if err != nil {
		return store.DecisionResult{}, err
	}
	for _, given := range r.Decisions {
		if given.ApprovalID == a.ID && given.PersonID == d.Person.ID && given.Digest == d.Digest && given.Decision == d.Decision {
			return store.DecisionResult{Approval: *a, Run: r.Run, Decision: given.DecisionRecord, Effects: r.released(a.ID), Repeated: true}, nil
		}
	}
	switch {
	case a.State != holdpoint.ApprovalPending:
		return store.DecisionResult{}, refused(holdpoint.CodeAlreadyDecided)
	case a.Digest != d.Digest:
		return store.DecisionResult{}, refused(holdpoint.CodeStaleDigest)
	case m.past(a.ApproveBy), !slices.Contains(a.Allowed, d.Decision), a.Quorum > 1:
		return store.DecisionResult{}, refused(holdpoint.CodeNotAllowedNow)
	}
	record := holdpoint.DecisionRecord{ID: d.ID, ApprovalID: a.ID, Digest: d.Digest, PersonID: d.Person.ID, Email: d.Person.Email, Decision: d.Decision,
		Assurance: d.Assurance, How: d.How, CreatedAt: m.clock()}
	err = m.verb(func() error {
		for i := range r.Challenges {
			if c := &r.Challenges[i]; c.ApprovalID == a.ID && c.Email == d.Person.Email && c.UsedAt == nil && c.RevokedAt == nil {
				c.UsedAt, record.ChallengeID = new(m.clock()), c.ID
			}
		}
		r.Decisions = append(r.Decisions, store.DecisionRow{DecisionRecord: record, ReasonText: d.ReasonText})
		m.tell(r, "decision.recorded")
		m.queue(d.Messages)
		a.DecidedAt = new(m.clock())
		switch d.Decision {
		case holdpoint.DecisionApprove:
			return m.approve(r, a)
		case holdpoint.DecisionReject:
			if err := m.turnApproval(r, a, holdpoint.ApprovalRejected, "reject"); err != nil {
				return err
			}
			m.tell(r, "run.failed")
			return m.turn(r, holdpoint.RunFailedTerminal, "reject", holdpoint.ReasonRejected, "")
		}
		if err := m.turnApproval(r, a, holdpoint.ApprovalSentBack, "send_back"); err != nil {
			return err
		}
		m.tell(r, "run.sent_back")
		if err := m.turn(r, holdpoint.RunFailedRetryable, "send_back", holdpoint.ReasonSentBack, ""); err != nil {
			return err
		}
		// Due now, no attempt spent, in the next round with a budget of its own (R1.5).
		r.Run.RetryAt, r.Run.Attempts, r.Run.Repairs, r.Run.Round, r.Run.BudgetUntil = new(m.clock()), 0, 0, r.Run.Round+1, new(m.clock().Add(d.Budget))
		return nil
	}, r)
	return store.DecisionResult{Approval: *a, Run: r.Run, Decision: record, Effects: r.released(a.ID)}, err
}

// approve releases the planned effects of the approval's revision. No run releases twice: its second draft comes after a
// first one that released nothing.
func (m *model) approve(r *modelRun, a *holdpoint.Approval) error {
	if err := m.turnApproval(r, a, holdpoint.ApprovalApproved, "approve"); err != nil {
		return err
	}
	a.ExecuteBy = new(m.clock().Add(time.Duration(a.ExecuteWithin)))
	if err := m.turn(r, holdpoint.RunApproved, "approve", "", ""); err != nil {
		return err
	}
	m.tell(r, "run.approved")
	for _, p := range r.Planned {
		if p.Revision == a.Revision {
			r.Effects = append(r.Effects, store.EffectRow{Target: p.Target, Payload: p.Payload, Effect: holdpoint.Effect{EffectSpec: p.EffectSpec,
				Tenant: a.Tenant, ApprovalID: a.ID, State: holdpoint.EffectPending, Version: 1, NextAttemptAt: new(m.clock()), ExecuteBy: a.ExecuteBy, CreatedAt: m.clock()}})
			m.tell(r, "effect.queued")
		}
	}
	m.settle(r)
	return nil
}

func (m *model) WithdrawApproval(_ context.Context, tenant, id string, _ []byte, _ holdpoint.Who) (store.DecisionResult, error) {
	r, a, err := m.approval(tenant, id)
	if err != nil {
		return store.DecisionResult{}, err
	}
	if a.State == holdpoint.ApprovalWithdrawn {
		return store.DecisionResult{Approval: *a, Run: r.Run, Effects: r.released(id), Repeated: true}, nil
	}
	err = m.verb(func() error {
		pending := a.State == holdpoint.ApprovalPending
		if !pending && m.endNotBegun(r, id, "withdrawn") == 0 {
			return refused(holdpoint.CodeNotAllowedNow)
		}
		if err := m.turnApproval(r, a, holdpoint.ApprovalWithdrawn, "withdraw"); err != nil {
			return err
		}
		m.revoke(r, id)
		if pending {
			m.tell(r, "run.failed")
			return m.turn(r, holdpoint.RunFailedTerminal, "withdraw", holdpoint.ReasonWithdrawn, "")
		}
		m.settle(r)
		return nil
	}, r)
	return store.DecisionResult{Approval: *a, Run: r.Run, Effects: r.released(id)}, err
}

// challenge finds a way in and its run; not_found.
func (m *model) challenge(tenant, id string) (*modelRun, *holdpoint.Challenge, error) {
	for _, r := range m.sorted(tenant) {
		for i := range r.Challenges {
			if r.Challenges[i].ID == id {
				return r, &r.Challenges[i], nil
			}
		}
	}
	return nil, nil, refused(holdpoint.CodeNotFound)
}

func (m *model) MintChallengeToken(_ context.Context, tenant, id, hash string) error {
	if _, _, err := m.challenge(tenant, id); err != nil {
		return err
	}
	ref := modelRef{tenant, id}
	if other, taken := m.tokens[hash]; taken && other != ref { // a token stays with its challenge
		return refused(holdpoint.CodeNotFound)
	}
	m.tokens[hash] = ref
	return nil
}

func (m *model) ChallengeByToken(_ context.Context, hash string) (holdpoint.Challenge, error) {
	ref := m.tokens[hash]
	_, c, err := m.challenge(ref.tenant, ref.id)
	if ref.id == "" || err != nil {
		return holdpoint.Challenge{}, refused(holdpoint.CodeNotFound)
	}
	return *c, nil
}

func (m *model) OpenChallenge(_ context.Context, tenant, id string) (holdpoint.Challenge, error) {
	r, c, err := m.challenge(tenant, id)
	if err != nil {
		return holdpoint.Challenge{}, err
	}
	_, a, err := m.approval(tenant, c.ApprovalID)
	if err != nil || c.UsedAt != nil || c.RevokedAt != nil || m.past(c.ExpiresAt) || a.State != holdpoint.ApprovalPending {
		return holdpoint.Challenge{}, refused(holdpoint.CodeNotFound)
	}
	if c.OpenedAt == nil {
		c.OpenedAt = new(m.clock())
		m.tell(r, "challenge.opened")
	}
	return *c, nil
}
