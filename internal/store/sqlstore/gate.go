package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

const decisionColumns = `decisions.id, decisions.approval_id, decisions.digest, decisions.person_id, decisions.email, decisions.decision,
 decisions.assurance, decisions.how, decisions.challenge_id, decisions.created_at`

func scanDecision(row scanner) (holdpoint.DecisionRecord, error) {
	var d holdpoint.DecisionRecord
	var created int64
	err := row.Scan(&d.ID, &d.ApprovalID, &d.Digest, &d.PersonID, &d.Email, &d.Decision, &d.Assurance, &d.How, &d.ChallengeID, &created)
	d.CreatedAt = instant(created)
	return d, err
}

// lockApproval locks the run of an approval and reads both; not_found if there is no such approval.
//
// Race: decisions, withdrawals, expiries, claims and effects of one run queue for its row, so what is read here stands
// until the transaction ends.
func (t *tx) lockApproval(ctx context.Context, tenant, id string) (run holdpoint.Run, a holdpoint.Approval, now time.Time, err error) {
	var runID string
	err = t.QueryRowContext(ctx, "SELECT run_id FROM approvals WHERE tenant = $1 AND id = $2", tenant, id).Scan(&runID)
	if errors.Is(err, sql.ErrNoRows) {
		err = holdpoint.Errorf(holdpoint.CodeNotFound, "there is no approval %s in this tenant; look at its run", id)
	}
	if err != nil {
		return run, a, now, err
	}
	if run, now, err = t.lockRun(ctx, tenant, runID); err != nil {
		return run, a, now, err
	}
	a, err = scanApproval(t.QueryRowContext(ctx, t.s.expand("SELECT "+approvalColumns+" FROM approvals WHERE tenant = $1 AND id = $2 {{for_update}}"), tenant, id))
	return run, a, now, err
}

// Decide implements store.Gates.
func (s *Store) Decide(ctx context.Context, d store.Decision) (store.DecisionResult, error) {
	var out store.DecisionResult
	err := s.do(ctx, "Decide", func(t *tx) error {
		run, a, now, err := t.lockApproval(ctx, d.Tenant, d.ApprovalID)
		if err != nil {
			return err
		}
		out = store.DecisionResult{Approval: a, Run: run}
		rows, err := t.QueryContext(ctx, "SELECT "+decisionColumns+" FROM decisions WHERE tenant = $1 AND approval_id = $2 ORDER BY created_at, id", d.Tenant, a.ID)
		given, err := collect(rows, err, scanDecision)
		if err != nil {
			return err
		}
		for _, g := range given {
			if g.PersonID == d.Person.ID && g.Digest == d.Digest && g.Decision == d.Decision {
				out.Decision, out.Repeated = g, true
				out.Effects, err = t.effects(ctx, "tenant = $1 AND approval_id = $2 ORDER BY ord", d.Tenant, a.ID)
				return err
			}
		}
		if err := decidable(a, given, d, now); err != nil {
			return err
		}
		m := mover{tx: t, now: now, who: d.Who}
		if err := m.decide(ctx, &out, d); err != nil {
			return err
		}
		if err := m.flush(ctx); err != nil {
			return err
		}
		if err := t.queue(ctx, now, d.Messages); err != nil {
			return err
		}
		return t.notify(ctx, "effects")
	})
	if err != nil {
		return store.DecisionResult{}, err
	}
	if !out.Repeated {
		s.hint("effects")
		s.hint("messages")
	}
	return out, nil
}

// decidable says why a decision cannot be taken, or nil.
func decidable(a holdpoint.Approval, given []holdpoint.DecisionRecord, d store.Decision, now time.Time) error {
	standing := map[string]any{"state": a.State}
	if len(given) > 0 {
		last := given[len(given)-1]
		standing["decision"], standing["email"], standing["created_at"] = last.Decision, last.Email, last.CreatedAt
	}
	switch {
	case a.State != holdpoint.ApprovalPending:
		return holdpoint.Errorf(holdpoint.CodeAlreadyDecided, "this approval is %s already; nothing was changed", a.State).With("standing", standing)
	case a.Digest != d.Digest:
		return holdpoint.Errorf(holdpoint.CodeStaleDigest, "the draft has changed since you saw it; read it again and decide about what it says now").With("digest", a.Digest)
	case !now.Before(a.ApproveBy):
		return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "the time to decide is over; nothing was changed").With("standing", standing)
	case !slices.Contains(a.Allowed, d.Decision):
		return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "this approval does not offer %s", d.Decision).With("allowed", a.Allowed)
	case a.Quorum > 1:
		return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "this approval needs more than one person, which this version cannot count")
	}
	return nil
}

// decide records a decision on a pending approval and moves approval, run and effects with it.
func (m *mover) decide(ctx context.Context, out *store.DecisionResult, d store.Decision) error {
	a := &out.Approval
	rows, err := m.QueryContext(ctx, `UPDATE challenges SET used_at = $4 WHERE tenant = $1 AND approval_id = $2 AND email = $3
 AND used_at IS NULL AND revoked_at IS NULL RETURNING id`, d.Tenant, a.ID, d.Person.Email, m.now.UnixMicro())
	used, err := collect(rows, err, func(row scanner) (id string, err error) { return id, row.Scan(&id) })
	if err != nil {
		return err
	}
	out.Decision = holdpoint.DecisionRecord{ID: d.ID, ApprovalID: a.ID, Digest: d.Digest, PersonID: d.Person.ID, Email: d.Person.Email,
		Decision: d.Decision, Assurance: d.Assurance, How: d.How, CreatedAt: m.now}
	if len(used) > 0 {
		out.Decision.ChallengeID = slices.Min(used)
	}
	r := out.Decision
	if _, err := m.ExecContext(ctx, `INSERT INTO decisions (tenant, id, approval_id, run_id, digest, person_id, email, decision, assurance, how, challenge_id, reason_text, created_at)
 VALUES `+tuples(1, 13, 1), d.Tenant, r.ID, a.ID, a.RunID, r.Digest, r.PersonID, r.Email, string(r.Decision), r.Assurance, r.How, r.ChallengeID,
		d.ReasonText, m.now.UnixMicro()); err != nil {
		return err
	}
	data := map[string]any{"decision_id": r.ID, "approval_id": a.ID, "digest": r.Digest, "decision": r.Decision, "person_id": r.PersonID,
		"assurance": r.Assurance, "how": r.How}
	if r.ChallengeID != "" {
		data["challenge_id"] = r.ChallengeID
	}
	m.note("decision.recorded", a.Tenant, a.RunID, data, d.ReasonText)
	switch d.Decision {
	case holdpoint.DecisionApprove:
		if err := m.turnApproval(ctx, a, holdpoint.ApprovalApproved, "approve"); err != nil {
			return err
		}
		return m.release(ctx, out)
	case holdpoint.DecisionReject:
		if err := m.turnApproval(ctx, a, holdpoint.ApprovalRejected, "reject"); err != nil {
			return err
		}
		return m.turnRun(ctx, &out.Run, "run.failed", runMove{to: holdpoint.RunFailedTerminal, trigger: "reject", reason: holdpoint.ReasonRejected})
	case holdpoint.DecisionSendBack:
		if err := m.turnApproval(ctx, a, holdpoint.ApprovalSentBack, "send_back"); err != nil {
			return err
		}
		// Due now, no attempt spent, a new round with its own budget (R1.5). Under the run's lock, before its version moves.
		if _, err := m.ExecContext(ctx, "UPDATE runs SET attempts = 0, repairs = 0, round = round + 1, budget_until = $3 WHERE tenant = $1 AND id = $2",
			a.Tenant, a.RunID, m.now.Add(d.Budget).UnixMicro()); err != nil {
			return err
		}
		return m.turnRun(ctx, &out.Run, "run.sent_back", runMove{to: holdpoint.RunFailedRetryable, trigger: "send_back", reason: holdpoint.ReasonSentBack, retryAt: &m.now})
	}
	return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "a decision is approve, reject or send_back")
}

// turnApproval makes one transition of a locked approval and notes it. Compare-and-set on state and version (I5).
func (m *mover) turnApproval(ctx context.Context, a *holdpoint.Approval, to holdpoint.ApprovalState, trigger string) error {
	from := a.State
	if !holdpoint.Allowed(holdpoint.ApprovalTransitions, from, to, trigger) {
		return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "this approval is %s, which does not permit this; nothing was changed", from).With("state", from)
	}
	decided, executeBy := a.DecidedAt, a.ExecuteBy
	if to != holdpoint.ApprovalWithdrawn {
		decided = &m.now
	}
	if to == holdpoint.ApprovalApproved {
		by := m.now.Add(time.Duration(a.ExecuteWithin))
		executeBy = &by
	}
	turned, err := scanApproval(m.QueryRowContext(ctx, `UPDATE approvals SET state = $5, version = version + 1, decided_at = CAST($6 AS BIGINT), execute_by = CAST($7 AS BIGINT)
 WHERE tenant = $1 AND id = $2 AND state = $3 AND version = $4 RETURNING `+approvalColumns,
		a.Tenant, a.ID, string(from), a.Version, string(to), microsPtr(decided), microsPtr(executeBy)))
	if errors.Is(err, sql.ErrNoRows) {
		return errMoved
	}
	if err != nil {
		return err
	}
	*a = turned
	data := map[string]any{"approval_id": a.ID, "digest": a.Digest, "from": from, "to": to, "version": a.Version}
	if a.ExecuteBy != nil {
		data["execute_by"] = a.ExecuteBy
	}
	m.note("approval."+string(to), a.Tenant, a.RunID, data, nil)
	return nil
}

// release moves the run to approved and its planned effects into the outbox (I4). With nothing to send the run ends.
func (m *mover) release(ctx context.Context, out *store.DecisionResult) error {
	a, run := &out.Approval, &out.Run
	if err := m.turnRun(ctx, run, "run.approved", runMove{to: holdpoint.RunApproved, trigger: "approve"}); err != nil {
		return err
	}
	// One statement copies what was approved, byte for byte; a slot that is in the outbox already keeps its row.
	rows, err := m.QueryContext(ctx, `INSERT INTO effects (tenant, `+specColumns+`, target, payload, approval_id, state, next_attempt_at, execute_by, created_at, updated_at)
 SELECT tenant, `+specColumns+`, target, payload, $4, 'pending', $5, $6, $5, $5 FROM planned_effects
 WHERE tenant = $1 AND run_id = $2 AND revision = $3 ORDER BY ord
 ON CONFLICT (tenant, run_id, slot) DO NOTHING RETURNING `+effectColumns,
		a.Tenant, a.RunID, a.Revision, a.ID, m.now.UnixMicro(), a.ExecuteBy.UnixMicro())
	queued, err := collect(rows, err, func(row scanner) (holdpoint.Effect, error) { return scanEffect(row) })
	if err != nil {
		return err
	}
	var other int
	if err := m.QueryRowContext(ctx, `SELECT COUNT(*) FROM planned_effects p JOIN effects e ON e.tenant = p.tenant AND e.run_id = p.run_id AND e.slot = p.slot
 WHERE p.tenant = $1 AND p.run_id = $2 AND p.revision = $3
 AND (e.payload_hash <> p.payload_hash OR e.type <> p.type OR e.target_index <> p.target_index OR e.connector_version <> p.connector_version)`,
		a.Tenant, a.RunID, a.Revision).Scan(&other); err != nil {
		return err
	}
	if other > 0 {
		return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "this run has released a different effect in the same slot; correct it with a replacement run")
	}
	slices.SortFunc(queued, func(a, b holdpoint.Effect) int { return a.Order - b.Order })
	var order []any
	for _, e := range queued {
		for _, slot := range e.After {
			order = append(order, e.Tenant, e.RunID, e.ID, slot)
		}
		m.note("effect.queued", e.Tenant, e.RunID, map[string]any{"effect_id": e.ID, "slot": e.Slot, "type": e.Type, "connector": e.Connector,
			"connector_version": e.ConnectorVersion, "payload_hash": e.PayloadHash, "to": e.State, "version": e.Version, "execute_by": e.ExecuteBy}, nil)
	}
	if len(order) > 0 {
		if _, err := m.ExecContext(ctx, "INSERT INTO effect_order (tenant, run_id, effect_id, after_slot) VALUES "+tuples(len(order)/4, 4, 1)+
			" ON CONFLICT DO NOTHING", order...); err != nil {
			return err
		}
	}
	out.Effects = queued
	_, err = m.settleRun(ctx, run)
	return err
}

// WithdrawApproval implements store.Gates. The same call again, after a lost answer, gives what stands.
func (s *Store) WithdrawApproval(ctx context.Context, tenant, approvalID string, reasonText []byte, who holdpoint.Who) (store.DecisionResult, error) {
	var out store.DecisionResult
	err := s.do(ctx, "WithdrawApproval", func(t *tx) error {
		run, a, now, err := t.lockApproval(ctx, tenant, approvalID)
		if err != nil {
			return err
		}
		out = store.DecisionResult{Approval: a, Run: run}
		m := mover{tx: t, now: now, who: who}
		switch a.State {
		case holdpoint.ApprovalWithdrawn:
			out.Repeated = true
			out.Effects, err = t.effects(ctx, "tenant = $1 AND approval_id = $2 ORDER BY ord", tenant, a.ID)
			return err
		case holdpoint.ApprovalApproved:
			err = m.withdrawEffects(ctx, &out)
		default:
			if err = m.turnApproval(ctx, &out.Approval, holdpoint.ApprovalWithdrawn, "withdraw"); err == nil {
				err = m.turnRun(ctx, &out.Run, "run.failed", runMove{to: holdpoint.RunFailedTerminal, trigger: "withdraw", reason: holdpoint.ReasonWithdrawn})
			}
		}
		if err != nil {
			return err
		}
		for i := range m.events { // the person's words belong to the withdrawal
			if m.events[i].kind == "approval.withdrawn" {
				m.events[i].content = reasonText
			}
		}
		if err := t.revokeChallenges(ctx, a, now); err != nil {
			return err
		}
		return m.flush(ctx)
	})
	if err != nil {
		return store.DecisionResult{}, err
	}
	return out, nil
}

// withdrawEffects ends every effect of an approval that has not begun, and the run with the last open one.
func (m *mover) withdrawEffects(ctx context.Context, out *store.DecisionResult) error {
	all, err := m.effects(ctx, "tenant = $1 AND approval_id = $2 ORDER BY ord", out.Approval.Tenant, out.Approval.ID)
	if err != nil {
		return err
	}
	ended := 0
	for i := range all {
		free, err := m.notBegun(ctx, all[i])
		if err != nil {
			return err
		}
		if !free {
			continue
		}
		if err := m.end(ctx, &all[i], reasonWithdrawn); err != nil {
			return err
		}
		ended++
	}
	if ended == 0 {
		return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "every effect of this approval has begun or ended; resolve what is unknown instead").With("state", out.Approval.State)
	}
	if err := m.turnApproval(ctx, &out.Approval, holdpoint.ApprovalWithdrawn, "withdraw"); err != nil {
		return err
	}
	out.Effects = all
	_, err = m.settleRun(ctx, &out.Run, all...)
	return err
}

// revokeChallenges ends every way in to an approval that was not used.
func (t *tx) revokeChallenges(ctx context.Context, a holdpoint.Approval, now time.Time) error {
	_, err := t.ExecContext(ctx, "UPDATE challenges SET revoked_at = $3 WHERE tenant = $1 AND approval_id = $2 AND used_at IS NULL AND revoked_at IS NULL",
		a.Tenant, a.ID, now.UnixMicro())
	return err
}
