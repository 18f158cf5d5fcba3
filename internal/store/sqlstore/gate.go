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

func scanDecision(row scanner, more ...any) (holdpoint.DecisionRecord, error) {
	var d holdpoint.DecisionRecord
	var created int64
	err := row.Scan(append([]any{&d.ID, &d.ApprovalID, &d.Digest, &d.PersonID, &d.Email, &d.Decision, &d.Assurance, &d.How, &d.ChallengeID, &created}, more...)...)
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
		err = noApproval(id)
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

// Decide implements store.Gates. Decisions on different approvals that come at the same time share a transaction.
func (s *Store) Decide(ctx context.Context, d store.Decision) (store.DecisionResult, error) {
	out, err := s.decisions.do(ctx, d)
	if err == nil && len(out.Effects) > 0 {
		s.hint("effects")
	}
	if err == nil && len(d.Messages) > 0 {
		s.hint("messages")
	}
	return out, err
}

// decideAll decides under the locks of the runs, which decisions, withdrawals, expiries, claims and effects queue for: what
// is read here stands until the transaction ends.
func (s *Store) decideAll(ctx context.Context, t *tx, list []store.Decision, out []store.DecisionResult, refused []error) error {
	asked := make([][]any, len(list))
	for i, d := range list {
		asked[i] = []any{d.Tenant, d.ApprovalID}
	}
	runs, now, err := t.lockRunsOf(ctx, asked)
	if err != nil {
		return err
	}
	approvals, err := t.approvalsOf(ctx, asked)
	if err != nil {
		return err
	}
	given, err := t.decisionsOf(ctx, asked)
	if err != nil {
		return err
	}
	m := decisionMover{mover: mover{tx: t, now: now}}
	for i, d := range list {
		a := approvals[runRef{d.Tenant, d.ApprovalID}]
		var run *holdpoint.Run
		if a != nil {
			run = runs[runRef{a.Tenant, a.RunID}] // none if the approval was not there yet when the runs were locked
		}
		if run == nil {
			refused[i] = noApproval(d.ApprovalID)
			continue
		}
		out[i] = store.DecisionResult{Approval: *a, Run: *run}
		before := given[runRef{d.Tenant, d.ApprovalID}]
		if n := slices.IndexFunc(before, func(g holdpoint.DecisionRecord) bool {
			return g.PersonID == d.Person.ID && g.Digest == d.Digest && g.Decision == d.Decision
		}); n >= 0 {
			out[i].Decision, out[i].Repeated = before[n], true
			if out[i].Effects, err = t.effectsWhere(ctx, "tenant = $1 AND approval_id = $2 ORDER BY ord", d.Tenant, a.ID); err != nil {
				return err
			}
			continue
		}
		if refused[i] = decidable(*a, before, d, now); refused[i] == nil {
			m.taken = append(m.taken, taken{d, &out[i], &refused[i]})
		}
	}
	if err := m.refuseOthers(ctx); err != nil {
		return err
	}
	if err := m.decideTaken(ctx); err != nil {
		return err
	}
	if err := m.flush(ctx); err != nil {
		return err
	}
	if len(m.taken) == 0 {
		return nil
	}
	t.notify("effects")
	return nil
}

// lockRunsOf locks the runs of some approvals, with the transaction's clock.
func (t *tx) lockRunsOf(ctx context.Context, approvals [][]any) (map[runRef]*holdpoint.Run, time.Time, error) {
	var refs []runRef
	err := t.each(ids, approvals, nil, func(with string, args []any) error {
		rows, err := t.QueryContext(ctx, with+" SELECT approvals.tenant, approvals.run_id FROM v JOIN approvals ON approvals.tenant = v.tenant AND approvals.id = v.id", args...)
		some, err := collect(rows, err, func(row scanner) (r runRef, err error) { return r, row.Scan(&r.tenant, &r.id) })
		refs = append(refs, some...)
		return err
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	return t.lockRuns(ctx, refs)
}

// approvalsOf reads approvals whose runs are locked.
func (t *tx) approvalsOf(ctx context.Context, approvals [][]any) (map[runRef]*holdpoint.Approval, error) {
	found := map[runRef]*holdpoint.Approval{}
	err := t.each(ids, approvals, nil, func(with string, args []any) error {
		rows, err := t.QueryContext(ctx, with+" SELECT "+approvalColumns+" FROM v JOIN approvals ON approvals.tenant = v.tenant AND approvals.id = v.id", args...)
		_, err = collect(rows, err, func(row scanner) (a holdpoint.Approval, err error) {
			a, err = scanApproval(row)
			found[runRef{a.Tenant, a.ID}] = &a
			return a, err
		})
		return err
	})
	return found, err
}

// decisionsOf reads what was decided about some approvals, in the order of time.
func (t *tx) decisionsOf(ctx context.Context, approvals [][]any) (map[runRef][]holdpoint.DecisionRecord, error) {
	found := map[runRef][]holdpoint.DecisionRecord{}
	err := t.each(ids, approvals, nil, func(with string, args []any) error {
		rows, err := t.QueryContext(ctx, with+" SELECT "+decisionColumns+`, decisions.tenant
 FROM v JOIN decisions ON decisions.tenant = v.tenant AND decisions.approval_id = v.id ORDER BY decisions.created_at, decisions.id`, args...)
		_, err = collect(rows, err, func(row scanner) (d holdpoint.DecisionRecord, err error) {
			var tenant string
			d, err = scanDecision(row, &tenant)
			found[runRef{tenant, d.ApprovalID}] = append(found[runRef{tenant, d.ApprovalID}], d)
			return d, err
		})
		return err
	})
	return found, err
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

// turnApproval makes one transition of a locked approval and notes it.
func (m *mover) turnApproval(a *holdpoint.Approval, to holdpoint.ApprovalState, trigger string) error {
	from := a.State
	if !holdpoint.Allowed(holdpoint.ApprovalTransitions, from, to, trigger) {
		return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "this approval is %s, which does not permit this; nothing was changed", from).With("state", from)
	}
	w := m.approvals.of(runRef{a.Tenant, a.ID}, func() approvalWrite { return approvalWrite{from: from, version: a.Version} })
	if a.State, a.Version = to, a.Version+1; to != holdpoint.ApprovalWithdrawn {
		a.DecidedAt = &m.now
	}
	if to == holdpoint.ApprovalApproved {
		by := m.now.Add(time.Duration(a.ExecuteWithin)).Truncate(time.Microsecond)
		a.ExecuteBy = &by
	}
	w.approval = *a
	data := map[string]any{"approval_id": a.ID, "digest": a.Digest, "from": from, "to": to, "version": a.Version}
	if a.ExecuteBy != nil {
		data["execute_by"] = a.ExecuteBy
	}
	m.note("approval."+string(to), a.Tenant, a.RunID, data, nil)
	return nil
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
			out.Effects, err = t.effectsWhere(ctx, "tenant = $1 AND approval_id = $2 ORDER BY ord", tenant, a.ID)
			return err
		case holdpoint.ApprovalApproved:
			err = m.withdrawEffects(ctx, &out)
		default:
			if err = m.turnApproval(&out.Approval, holdpoint.ApprovalWithdrawn, "withdraw"); err == nil {
				err = m.turnRun(&out.Run, "run.failed", runMove{to: holdpoint.RunFailedTerminal, trigger: "withdraw", reason: holdpoint.ReasonWithdrawn})
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
	all, err := m.effectsWhere(ctx, "tenant = $1 AND approval_id = $2 ORDER BY ord", out.Approval.Tenant, out.Approval.ID)
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
	if err := m.turnApproval(&out.Approval, holdpoint.ApprovalWithdrawn, "withdraw"); err != nil {
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

// approvalWrite is an approval as it stands now, and the state and version that its row still has.
type approvalWrite struct {
	from     holdpoint.ApprovalState
	version  int64
	approval holdpoint.Approval
}

var approvalWrites = columns("tenant text, id text, from_state text, from_version bigint, state text, version bigint, decided_at bigint, execute_by bigint")

// writeApprovals writes approvals that have moved. Compare-and-set on state and version (I5).
func (t *tx) writeApprovals(ctx context.Context, list []*approvalWrite) error {
	rows := make([][]any, len(list))
	for i, w := range list {
		a := w.approval
		rows[i] = []any{a.Tenant, a.ID, string(w.from), w.version, string(a.State), a.Version, microsPtr(a.DecidedAt), microsPtr(a.ExecuteBy)}
	}
	return t.moved(ctx, approvalWrites, rows, ` UPDATE approvals SET state = v.state, version = v.version, decided_at = v.decided_at, execute_by = v.execute_by
 FROM v WHERE approvals.tenant = v.tenant AND approvals.id = v.id AND approvals.state = v.from_state AND approvals.version = v.from_version`)
}

func noApproval(id string) error {
	return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no approval %s in this tenant; look at its run", id)
}
