package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// Record implements store.Reads. All of it is of one moment. Drafts, planned effects, effects and approvals come in the
// order in which they were made, attempts, decisions and messages in that of time, steps in that of their last change.
func (s *Store) Record(ctx context.Context, tenant, runID string) (store.Record, error) {
	var r store.Record
	err := s.look(ctx, "record", func(t *tx) error {
		var err error
		if r.Now, err = t.now(ctx); err != nil {
			return err
		}
		now := r.Now
		r, err = scanContent(t.QueryRowContext(ctx, "SELECT "+contentColumns+" FROM runs WHERE tenant = $1 AND id = $2", tenant, runID))
		r.Now = now
		if err != nil {
			return readErr("record", err, noRun(runID))
		}
		for _, part := range []func(context.Context, *tx, *store.Record) error{
			recordDrafts, recordPlanned, recordEffects, recordAttempts, recordSteps, recordApprovals, recordChallenges, recordDecisions, recordMessages,
		} {
			if err := part(ctx, t, &r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return store.Record{}, err
	}
	return r, nil
}

func recordDrafts(ctx context.Context, t *tx, r *store.Record) error {
	rows, err := t.QueryContext(ctx, `SELECT revision, output_hash, model, policy_hash, created_at, output, source_url FROM drafts
 WHERE tenant = $1 AND run_id = $2 ORDER BY revision`, r.Run.Tenant, r.Run.ID)
	r.Drafts, err = collect(rows, err, func(row scanner) (store.DraftRow, error) {
		d := store.DraftRow{Draft: holdpoint.Draft{RunID: r.Run.ID}}
		var model string
		var created int64
		if err := row.Scan(&d.Revision, &d.OutputHash, &model, &d.PolicyHash, &created, &d.Output, &d.SourceURL); err != nil {
			return d, err
		}
		d.CreatedAt = instant(created)
		if err := json.Unmarshal([]byte(model), &d.Model); err != nil {
			return d, fmt.Errorf("draft %d of run %s: model: %w", d.Revision, r.Run.ID, err)
		}
		return d, nil
	})
	return err
}

func recordPlanned(ctx context.Context, t *tx, r *store.Record) error {
	rows, err := t.QueryContext(ctx, "SELECT "+specColumns+", target, payload FROM planned_effects WHERE tenant = $1 AND run_id = $2 ORDER BY revision, ord",
		r.Run.Tenant, r.Run.ID)
	r.Planned, err = collect(rows, err, func(row scanner) (store.PlannedEffect, error) {
		var p store.PlannedEffect
		dest, done := specDest(&p.EffectSpec)
		if err := row.Scan(append(dest, &p.Target, &p.Payload)...); err != nil {
			return p, err
		}
		return p, done()
	})
	return err
}

func recordEffects(ctx context.Context, t *tx, r *store.Record) error {
	rows, err := t.QueryContext(ctx, t.s.expand("SELECT "+effectColumns+", "+standingHold+`, effects.target, effects.payload FROM effects
 WHERE tenant = $2 AND run_id = $3 ORDER BY revision, ord`), t.s.clock(), r.Run.Tenant, r.Run.ID)
	r.Effects, err = collect(rows, err, func(row scanner) (store.EffectRow, error) {
		var e store.EffectRow
		var err error
		e.Effect, err = scanShown(row, &e.Target, &e.Payload)
		return e, err
	})
	return err
}

func recordAttempts(ctx context.Context, t *tx, r *store.Record) error {
	rows, err := t.QueryContext(ctx, "SELECT "+attemptColumns+` FROM attempts JOIN effects ON effects.tenant = attempts.tenant AND effects.id = attempts.effect_id
 WHERE effects.tenant = $1 AND effects.run_id = $2 ORDER BY attempts.begun_at, attempts.id`, r.Run.Tenant, r.Run.ID)
	r.Attempts, err = collect(rows, err, func(row scanner) (holdpoint.Attempt, error) { return scanAttempt(row) })
	return err
}

func recordSteps(ctx context.Context, t *tx, r *store.Record) error {
	rows, err := t.QueryContext(ctx, `SELECT name, state, side_effect, input_hash, result_hash, failure_class, lease_version, begins, updated_at, result FROM steps
 WHERE tenant = $1 AND run_id = $2 ORDER BY updated_at, name`, r.Run.Tenant, r.Run.ID)
	r.Steps, err = collect(rows, err, func(row scanner) (store.StepRow, error) {
		s := store.StepRow{Step: holdpoint.Step{RunID: r.Run.ID}}
		var side, updated int64
		err := row.Scan(&s.Name, &s.State, &side, &s.InputHash, &s.ResultHash, &s.FailureClass, &s.LeaseVersion, &s.Begins, &updated, &s.Result)
		s.SideEffect, s.UpdatedAt = side != 0, instant(updated)
		return s, err
	})
	return err
}

func recordApprovals(ctx context.Context, t *tx, r *store.Record) error {
	rows, err := t.QueryContext(ctx, "SELECT "+approvalColumns+" FROM approvals WHERE tenant = $1 AND run_id = $2 ORDER BY created_at, id", r.Run.Tenant, r.Run.ID)
	r.Approvals, err = collect(rows, err, func(row scanner) (holdpoint.Approval, error) { return scanApproval(row) })
	return err
}

func recordChallenges(ctx context.Context, t *tx, r *store.Record) error {
	rows, err := t.QueryContext(ctx, `SELECT challenges.tenant, challenges.id, challenges.approval_id, challenges.email, challenges.channel, challenges.expires_at,
  challenges.opened_at, challenges.used_at, challenges.revoked_at
 FROM challenges JOIN approvals ON approvals.tenant = challenges.tenant AND approvals.id = challenges.approval_id
 WHERE approvals.tenant = $1 AND approvals.run_id = $2 ORDER BY challenges.id`, r.Run.Tenant, r.Run.ID)
	r.Challenges, err = collect(rows, err, func(row scanner) (holdpoint.Challenge, error) {
		var c holdpoint.Challenge
		var expires int64
		var opened, used, revoked sql.NullInt64
		err := row.Scan(&c.Tenant, &c.ID, &c.ApprovalID, &c.Email, &c.Channel, &expires, &opened, &used, &revoked)
		c.ExpiresAt, c.OpenedAt, c.UsedAt, c.RevokedAt = instant(expires), instantPtr(opened), instantPtr(used), instantPtr(revoked)
		return c, err
	})
	return err
}

func recordDecisions(ctx context.Context, t *tx, r *store.Record) error {
	rows, err := t.QueryContext(ctx, `SELECT decisions.id, decisions.approval_id, decisions.digest, decisions.person_id, decisions.email, decisions.decision,
  decisions.assurance, decisions.how, decisions.challenge_id, decisions.created_at, decisions.reason_text
 FROM decisions JOIN approvals ON approvals.tenant = decisions.tenant AND approvals.id = decisions.approval_id
 WHERE approvals.tenant = $1 AND approvals.run_id = $2 ORDER BY decisions.created_at, decisions.id`, r.Run.Tenant, r.Run.ID)
	r.Decisions, err = collect(rows, err, func(row scanner) (store.DecisionRow, error) {
		var d store.DecisionRow
		var created int64
		err := row.Scan(&d.ID, &d.ApprovalID, &d.Digest, &d.PersonID, &d.Email, &d.Decision, &d.Assurance, &d.How, &d.ChallengeID, &created, &d.ReasonText)
		d.CreatedAt = instant(created)
		return d, err
	})
	return err
}

func recordMessages(ctx context.Context, t *tx, r *store.Record) error {
	rows, err := t.QueryContext(ctx, "SELECT "+messageColumns+" FROM messages WHERE tenant = $1 AND run_id = $2 ORDER BY created_at, id", r.Run.Tenant, r.Run.ID)
	r.Messages, err = collect(rows, err, func(row scanner) (holdpoint.MessageRecord, error) { return scanMessage(row) })
	return err
}
