package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

const stepColumns = `steps.run_id, steps.name, steps.state, steps.side_effect, steps.input_hash, steps.result_hash, steps.failure_class,
 steps.lease_version, steps.begins, steps.updated_at, steps.result`

// step reads one step below its run's lock; begins is 0 if it was never begun.
func (t *tx) step(ctx context.Context, tenant, run, name string) (s holdpoint.Step, result []byte, err error) {
	var effect, updated int64
	err = t.QueryRowContext(ctx, "SELECT "+stepColumns+" FROM steps WHERE tenant = $1 AND run_id = $2 AND name = $3", tenant, run, name).
		Scan(&s.RunID, &s.Name, &s.State, &effect, &s.InputHash, &s.ResultHash, &s.FailureClass, &s.LeaseVersion, &s.Begins, &updated, &result)
	if errors.Is(err, sql.ErrNoRows) {
		return holdpoint.Step{RunID: run, Name: name}, nil, nil
	}
	s.SideEffect, s.UpdatedAt = effect != 0, instant(updated)
	return s, result, err
}

// moveStep stores a step that has moved from a state, if the transition table allows it.
//
// Race: whoever moves steps of a run holds the run's lock; the state in the WHERE makes a mistake about that show itself.
func (t *tx) moveStep(ctx context.Context, tenant string, from holdpoint.StepState, trigger string, s holdpoint.Step, result []byte) error {
	if !holdpoint.Allowed(holdpoint.StepTransitions, from, s.State, trigger) {
		return stepNotNow(s.Name, from)
	}
	args := []any{tenant, s.RunID, s.Name, string(s.State), bit(s.SideEffect), s.InputHash, s.ResultHash, string(s.FailureClass),
		s.LeaseVersion, int64(s.Begins), result, s.UpdatedAt.UnixMicro()}
	q := `INSERT INTO steps (tenant, run_id, name, state, side_effect, input_hash, result_hash, failure_class, lease_version, begins, result, updated_at)
		VALUES ` + tuples(1, 12, 1) + ` ON CONFLICT DO NOTHING`
	if from != "" {
		q = `UPDATE steps SET state = $4, side_effect = $5, input_hash = $6, result_hash = $7, failure_class = $8, lease_version = $9,
			begins = $10, result = $11, updated_at = $12 WHERE tenant = $1 AND run_id = $2 AND name = $3 AND state = $13`
		args = append(args, string(from))
	}
	res, err := t.ExecContext(ctx, q, args...)
	return oneRow(res, err, stepNotNow(s.Name, from))
}

func stepNotNow(name string, state holdpoint.StepState) error {
	return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "step %s does not permit this in its present state; begin it again and act on the answer", name).
		With("state", state)
}

// BeginStep implements store.Runs.
func (s *Store) BeginStep(ctx context.Context, f store.Fence, b store.StepBegin) (answer store.StepResult, err error) {
	err = s.do(ctx, "BeginStep", func(t *tx) error {
		answer = store.StepResult{}
		r, now, err := t.lockRun(ctx, f.Tenant, f.RunID)
		if err != nil {
			return err
		}
		if err := owned(f, r, now); err != nil {
			return err
		}
		step, result, err := t.step(ctx, f.Tenant, f.RunID, b.Name)
		if err != nil {
			return err
		}
		answer.Step = step
		from, trigger := step.State, "begin"
		// A step that was once declared a side effect stays one: what it may have done is not undone by another word.
		step.SideEffect = step.SideEffect || b.SideEffect
		step.UpdatedAt = now
		switch {
		case from == holdpoint.StepCompleted && step.InputHash != b.InputHash:
			return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "step %s is complete for another input; give work with another input a step name of its own", b.Name).
				With("state", from)
		case from == holdpoint.StepCompleted:
			answer.Outcome, answer.Result = "done", result
			return nil
		case from == holdpoint.StepUncertain:
			answer.Outcome = "uncertain"
			return nil
		case from == holdpoint.StepRunning && step.LeaseVersion == f.Version:
			answer.Outcome, answer.RetryAfter = "in_progress", r.LeaseExpiresAt.Sub(now)
			return nil
		case from == holdpoint.StepRunning && step.SideEffect:
			answer.Outcome, trigger = "uncertain", "lose"
			step.State = holdpoint.StepUncertain
		default:
			answer.Outcome = "run"
			step.State, step.InputHash, step.LeaseVersion, step.Begins = holdpoint.StepRunning, b.InputHash, f.Version, step.Begins+1
			step.ResultHash, step.FailureClass = "", ""
		}
		if err := t.moveStep(ctx, f.Tenant, from, trigger, step, nil); err != nil {
			return err
		}
		answer.Step = step
		kind := "step.begun"
		if trigger == "lose" {
			kind = "step.uncertain"
		}
		return t.record(ctx, now, stepEvent(f.Tenant, kind, b.Who, from, step))
	})
	return answer, err
}

// stepEvent is the evidence of a step's move. Holdpoint does not govern what a side-effect step writes (I1).
func stepEvent(tenant, kind string, who holdpoint.Who, from holdpoint.StepState, s holdpoint.Step) event {
	data := map[string]any{"step": s.Name, "from": from, "to": s.State, "begins": s.Begins, "lease_version": s.LeaseVersion}
	if s.SideEffect {
		data["side_effect"], data["governed"] = true, false
	}
	for name, v := range map[string]string{"input_hash": s.InputHash, "result_hash": s.ResultHash, "failure_class": string(s.FailureClass)} {
		if v != "" {
			data[name] = v
		}
	}
	return event{tenant: tenant, run: s.RunID, kind: kind, who: who, data: data}
}

// FinishStep implements store.Runs.
func (s *Store) FinishStep(ctx context.Context, f store.Fence, e store.StepFinish) (step holdpoint.Step, err error) {
	err = s.do(ctx, "FinishStep", func(t *tx) error {
		r, now, err := t.lockRun(ctx, f.Tenant, f.RunID)
		if err != nil {
			return err
		}
		if err := owned(f, r, now); err != nil {
			return err
		}
		if step, _, err = t.step(ctx, f.Tenant, f.RunID, e.Name); err != nil {
			return err
		}
		from, trigger, to, kind := step.State, "finish", holdpoint.StepCompleted, "step.finished"
		if e.Class != holdpoint.ClassNone {
			trigger, to, kind = "fail", holdpoint.StepFailed, "step.failed"
		}
		switch {
		case from == "":
			return holdpoint.Errorf(holdpoint.CodeNotFound, "step %s was never begun; begin it first", e.Name)
		case from == to && step.LeaseVersion == f.Version && step.ResultHash == e.ResultHash && step.FailureClass == e.Class:
			return nil // the same word again
		case from == holdpoint.StepCompleted && to == from && step.ResultHash == e.ResultHash:
			return nil // completed under an earlier lease, or by an operator, with the same result
		case from == holdpoint.StepRunning && step.LeaseVersion != f.Version:
			return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "step %s was begun under an earlier lease; begin it again and act on the answer", e.Name).
				With("state", from)
		}
		step.State, step.ResultHash, step.FailureClass, step.UpdatedAt = to, e.ResultHash, e.Class, now
		if err := t.moveStep(ctx, f.Tenant, from, trigger, step, e.Result); err != nil {
			return err
		}
		return t.record(ctx, now, stepEvent(f.Tenant, kind, e.Who, from, step))
	})
	return step, err
}

// ResolveStep implements store.Runs.
func (s *Store) ResolveStep(ctx context.Context, r store.StepResolve) (step holdpoint.Step, err error) {
	err = s.do(ctx, "ResolveStep", func(t *tx) error {
		_, now, err := t.lockRun(ctx, r.Tenant, r.RunID)
		if err != nil {
			return err
		}
		if step, _, err = t.step(ctx, r.Tenant, r.RunID, r.Name); err != nil {
			return err
		}
		from, trigger := step.State, "resolve_not_done"
		if from == "" {
			return holdpoint.Errorf(holdpoint.CodeNotFound, "run %s has no step %s; list the run's steps", r.RunID, r.Name)
		}
		if from != holdpoint.StepUncertain {
			return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "step %s is not uncertain; there is nothing to resolve", r.Name).With("state", from)
		}
		var result []byte
		step.State, step.UpdatedAt = holdpoint.StepPending, now
		if r.Done {
			trigger, result = "resolve_done", r.Result
			step.State, step.ResultHash = holdpoint.StepCompleted, r.ResultHash
		}
		if err := t.moveStep(ctx, r.Tenant, from, trigger, step, result); err != nil {
			return err
		}
		e := stepEvent(r.Tenant, "step.resolved", r.Who, from, step)
		e.content = r.ReasonText
		return t.record(ctx, now, e)
	})
	return step, err
}

// WorkDurations implements store.Runs.
func (s *Store) WorkDurations(ctx context.Context, tenant, workflow string, limit int) ([]time.Duration, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT worked_us FROM runs WHERE tenant = $1 AND workflow = $2 AND worked_us IS NOT NULL
		ORDER BY id DESC LIMIT $3`, tenant, workflow, int64(limit))
	worked, err := collect(rows, err, func(row scanner) (time.Duration, error) {
		var us int64
		err := row.Scan(&us)
		return time.Duration(us) * time.Microsecond, err
	})
	if err != nil {
		return nil, unavailable("WorkDurations", err)
	}
	return worked, nil
}
