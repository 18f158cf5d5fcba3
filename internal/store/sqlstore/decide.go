package sqlstore

import (
	"context"
	"slices"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// taken is a decision that may be taken, with where its answer or its refusal goes.
type taken struct {
	store.Decision
	out     *store.DecisionResult
	refused *error
}

// decisionMover takes decisions on pending approvals of locked runs and moves approval, run and effects with each.
type decisionMover struct {
	mover
	taken   []taken
	records [][]any
	order   [][]any
}

var (
	usedChallenges = columns("tenant text, approval_id text, email text")
	decisionRows   = columns(`tenant text, id text, approval_id text, run_id text, digest text, person_id text, email text, decision text, assurance text,
 how text, challenge_id text, reason_text bytes, created_at bigint`)
	releases  = columns("tenant text, run_id text, revision bigint, approval_id text, execute_by bigint")
	orderRows = columns("tenant text, run_id text, effect_id text, after_slot text")
)

// refuseOthers refuses approvals whose run has released a different effect in the same slot.
func (m *decisionMover) refuseOthers(ctx context.Context) error {
	var rows [][]any
	for _, d := range m.taken {
		if d.Decision.Decision == holdpoint.DecisionApprove {
			a := d.out.Approval
			rows = append(rows, []any{a.Tenant, a.RunID, int64(a.Revision), a.ID, int64(0)})
		}
	}
	other := map[runRef]bool{}
	err := m.each(releases, rows, nil, func(with string, args []any) error {
		found, err := m.QueryContext(ctx, with+` SELECT v.tenant, v.approval_id FROM v
 JOIN planned_effects p ON p.tenant = v.tenant AND p.run_id = v.run_id AND p.revision = v.revision
 JOIN effects e ON e.tenant = p.tenant AND e.run_id = p.run_id AND e.slot = p.slot
 WHERE e.payload_hash <> p.payload_hash OR e.type <> p.type OR e.target_index <> p.target_index OR e.connector_version <> p.connector_version`, args...)
		_, err = collect(found, err, func(row scanner) (r runRef, err error) {
			err = row.Scan(&r.tenant, &r.id)
			other[r] = true
			return r, err
		})
		return err
	})
	m.taken = slices.DeleteFunc(m.taken, func(d taken) bool {
		if !other[runRef{d.Tenant, d.ApprovalID}] {
			return false
		}
		*d.refused = holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "this run has released a different effect in the same slot; correct it with a replacement run")
		return true
	})
	return err
}

// decideTaken takes the decisions.
func (m *decisionMover) decideTaken(ctx context.Context) error {
	used, err := m.useChallenges(ctx)
	if err != nil {
		return err
	}
	var approved []taken
	for _, d := range m.taken {
		m.who = d.Who
		a := &d.out.Approval
		r := holdpoint.DecisionRecord{ID: d.ID, ApprovalID: a.ID, Digest: d.Digest, PersonID: d.Person.ID, Email: d.Person.Email,
			Decision: d.Decision.Decision, Assurance: d.Assurance, How: d.How, ChallengeID: used[runRef{d.Tenant, a.ID}], CreatedAt: m.now}
		d.out.Decision = r
		m.records = append(m.records, []any{d.Tenant, r.ID, a.ID, a.RunID, r.Digest, r.PersonID, r.Email, string(r.Decision), r.Assurance, r.How,
			r.ChallengeID, d.ReasonText, m.now.UnixMicro()})
		data := map[string]any{"decision_id": r.ID, "approval_id": a.ID, "digest": r.Digest, "decision": r.Decision, "person_id": r.PersonID,
			"assurance": r.Assurance, "how": r.How}
		if r.ChallengeID != "" {
			data["challenge_id"] = r.ChallengeID
		}
		m.note("decision.recorded", a.Tenant, a.RunID, data, d.ReasonText)
		m.messages = append(m.messages, d.Messages...)
		switch r.Decision {
		case holdpoint.DecisionApprove:
			approved = append(approved, d)
			err = m.approve(a, &d.out.Run)
		case holdpoint.DecisionReject:
			if err = m.turnApproval(a, holdpoint.ApprovalRejected, "reject"); err == nil {
				err = m.turnRun(&d.out.Run, "run.failed", runMove{to: holdpoint.RunFailedTerminal, trigger: "reject", reason: holdpoint.ReasonRejected})
			}
		case holdpoint.DecisionSendBack:
			err = m.sendBack(ctx, d)
		default:
			err = holdpoint.Errorf(holdpoint.CodeInvalidRequest, "a decision is approve, reject or send_back")
		}
		if err != nil {
			return err
		}
	}
	if err := m.insert(ctx, "decisions", decisionRows, m.records); err != nil {
		return err
	}
	return m.release(ctx, approved)
}

// useChallenges uses up the ways in of those who decide and gives one of each, if there was any.
func (m *decisionMover) useChallenges(ctx context.Context) (map[runRef]string, error) {
	rows := make([][]any, len(m.taken))
	for i, d := range m.taken {
		rows[i] = []any{d.Tenant, d.ApprovalID, d.Person.Email}
	}
	used := map[runRef]string{}
	err := m.each(usedChallenges, rows, []any{m.now.UnixMicro()}, func(with string, args []any) error {
		returned, err := m.QueryContext(ctx, with+` UPDATE challenges SET used_at = CAST($1 AS BIGINT) FROM v
 WHERE challenges.tenant = v.tenant AND challenges.approval_id = v.approval_id AND challenges.email = v.email
 AND used_at IS NULL AND revoked_at IS NULL RETURNING challenges.tenant, challenges.approval_id, challenges.id`, args...)
		_, err = collect(returned, err, func(row scanner) (at runRef, err error) {
			var id string
			err = row.Scan(&at.tenant, &at.id, &id)
			if first := used[at]; first == "" || id < first {
				used[at] = id
			}
			return at, err
		})
		return err
	})
	return used, err
}

func (m *decisionMover) approve(a *holdpoint.Approval, run *holdpoint.Run) error {
	if err := m.turnApproval(a, holdpoint.ApprovalApproved, "approve"); err != nil {
		return err
	}
	return m.turnRun(run, "run.approved", runMove{to: holdpoint.RunApproved, trigger: "approve"})
}

// sendBack makes the run due now, with no attempt spent, for a new round with its own budget (R1.5).
func (m *decisionMover) sendBack(ctx context.Context, d taken) error {
	if err := m.turnApproval(&d.out.Approval, holdpoint.ApprovalSentBack, "send_back"); err != nil {
		return err
	}
	run := &d.out.Run
	until := m.now.Add(d.Budget)
	// Under the run's lock, before its version moves.
	if _, err := m.ExecContext(ctx, "UPDATE runs SET attempts = 0, repairs = 0, round = round + 1, budget_until = $3 WHERE tenant = $1 AND id = $2",
		run.Tenant, run.ID, until.UnixMicro()); err != nil {
		return err
	}
	run.Attempts, run.Repairs, run.Round, run.BudgetUntil = 0, 0, run.Round+1, &until
	return m.turnRun(run, "run.sent_back", runMove{to: holdpoint.RunFailedRetryable, trigger: "send_back", reason: holdpoint.ReasonSentBack, retryAt: &m.now})
}

// release copies what was approved into the outbox (I4). A run with nothing to send ends.
func (m *decisionMover) release(ctx context.Context, approved []taken) error {
	rows := make([][]any, len(approved))
	of := make(map[runRef]*store.DecisionResult, len(approved))
	for i, d := range approved {
		a := d.out.Approval
		rows[i] = []any{a.Tenant, a.RunID, int64(a.Revision), a.ID, a.ExecuteBy.UnixMicro()}
		of[runRef{a.Tenant, a.ID}] = d.out
	}
	// One statement copies byte for byte; a slot that is in the outbox already keeps its row.
	err := m.each(releases, rows, []any{m.now.UnixMicro()}, func(with string, args []any) error {
		queued, err := m.QueryContext(ctx, with+` INSERT INTO effects (tenant, `+specColumns+`, target, payload, approval_id, state, next_attempt_at, execute_by, created_at, updated_at)
 SELECT p.tenant, `+plannedColumns+`, p.target, p.payload, v.approval_id, 'pending', CAST($1 AS BIGINT), v.execute_by, CAST($1 AS BIGINT), CAST($1 AS BIGINT)
 FROM v JOIN planned_effects p ON p.tenant = v.tenant AND p.run_id = v.run_id AND p.revision = v.revision
 WHERE true ORDER BY p.tenant, p.run_id, p.ord ON CONFLICT (tenant, run_id, slot) DO NOTHING RETURNING `+effectColumns, args...)
		_, err = collect(queued, err, func(row scanner) (holdpoint.Effect, error) {
			e, err := scanEffect(row)
			if out := of[runRef{e.Tenant, e.ApprovalID}]; out != nil {
				out.Effects = append(out.Effects, e)
			}
			return e, err
		})
		return err
	})
	if err != nil {
		return err
	}
	var idle []*holdpoint.Run
	for _, d := range approved {
		slices.SortFunc(d.out.Effects, func(a, b holdpoint.Effect) int { return a.Order - b.Order })
		if m.who = d.Who; len(d.out.Effects) == 0 {
			idle = append(idle, &d.out.Run)
		}
		for _, e := range d.out.Effects {
			for i, slot := range e.After {
				if !slices.Contains(e.After[:i], slot) {
					m.order = append(m.order, []any{e.Tenant, e.RunID, e.ID, slot})
				}
			}
			m.note("effect.queued", e.Tenant, e.RunID, map[string]any{"effect_id": e.ID, "slot": e.Slot, "type": e.Type, "connector": e.Connector,
				"connector_version": e.ConnectorVersion, "payload_hash": e.PayloadHash, "to": e.State, "version": e.Version, "execute_by": e.ExecuteBy}, nil)
		}
	}
	if err := m.insert(ctx, "effect_order", orderRows, m.order); err != nil || len(idle) == 0 {
		return err
	}
	_, err = m.settleRuns(ctx, idle, nil)
	return err
}
