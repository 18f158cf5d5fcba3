package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// switchPause is how long an effect that met a switched-off scope between lease and begin rests before it is due again.
const switchPause = time.Second

// BeginAttempts implements store.Outbox. The same call again, after a lost answer, gives the attempts that it began.
func (s *Store) BeginAttempts(ctx context.Context, owner string, list []store.AttemptBegin) ([]store.BegunAttempt, error) {
	if len(list) == 0 {
		return nil, nil
	}
	var begun []store.BegunAttempt
	err := s.do(ctx, "begin attempts", func(t *tx) error {
		begun = nil
		// The switches first: SetSwitch waits until this transaction has ended, and this one for a flip under way.
		on, err := t.shareSwitches(ctx, list)
		if err != nil {
			return err
		}
		refs := make([]runRef, len(list))
		ids := make([]any, 0, 2*len(list))
		for i, a := range list {
			refs[i] = runRef{a.Tenant, a.RunID}
			ids = append(ids, a.Tenant, a.EffectID)
		}
		runs, now, err := t.lockRuns(ctx, refs)
		if err != nil {
			return err
		}
		found, err := t.effects(ctx, "(tenant, id) IN (VALUES "+tuples(len(list), 2, 1)+")", ids...)
		if err != nil {
			return err
		}
		type key struct{ tenant, id string }
		effects := make(map[key]*holdpoint.Effect, len(found))
		for i := range found {
			effects[key{found[i].Tenant, found[i].ID}] = &found[i]
		}
		m := mover{tx: t, now: now, who: dispatcher}
		for _, a := range list {
			run, e := runs[runRef{a.Tenant, a.RunID}], effects[key{a.Tenant, a.EffectID}]
			if run == nil || e == nil || e.RunID != run.ID {
				continue
			}
			b, err := m.begin(ctx, owner, a, run, e, on)
			if err != nil {
				return err
			}
			if b != nil {
				begun = append(begun, *b)
			}
		}
		return m.flush(ctx)
	})
	return begun, err
}

// begin opens one attempt of a locked run's effect, or says with nil that nothing may leave.
func (m *mover) begin(ctx context.Context, owner string, a store.AttemptBegin, run *holdpoint.Run, e *holdpoint.Effect, on switchboard) (*store.BegunAttempt, error) {
	if e.State != holdpoint.EffectSending || e.LeaseOwner != owner || e.LeaseExpiresAt == nil || !m.now.Before(*e.LeaseExpiresAt) {
		return nil, nil
	}
	if e.Version != a.Version {
		return m.repeated(ctx, a, e)
	}
	sendBefore := m.now.Add(a.SendBefore)
	switch {
	case !on.allow(*e):
		next := m.now.Add(switchPause)
		e.NextAttemptAt = &next
		return nil, m.move(ctx, e, holdpoint.EffectPending, "retry", "effect.released", map[string]any{"cause": holdpoint.ClassSwitchedOff})
	case run.State != holdpoint.RunApproved:
		return nil, m.move(ctx, e, holdpoint.EffectPending, "retry", "effect.released", map[string]any{"cause": "run_not_approved"})
	case e.ExecuteBy != nil && !m.now.Before(*e.ExecuteBy):
		e.Hold = holdpoint.HoldExpired
		return nil, m.move(ctx, e, holdpoint.EffectPending, "retry", "effect.held", nil)
	case e.PossiblyCommitted && (a.ProofUntil.Before(sendBefore) || e.WireHash != "" && e.WireHash != a.WireHash):
		// I3: what may have been accepted is repeated only inside the proved life of its key and with the same bytes.
		e.FailureClass, e.NextLookupAt = holdpoint.ClassKeyWindowOver, m.lookupAt(*e, 0)
		return nil, m.move(ctx, e, holdpoint.EffectUnknown, "doubt", "", nil)
	}
	until := *e.LeaseExpiresAt
	if until.Before(sendBefore) {
		until = sendBefore
	}
	// Owner, version and state are compared once more: of two begins of one lease only one can match (I5).
	res, err := m.ExecContext(ctx, `UPDATE effects SET attempts = attempts + 1, first_attempt_at = COALESCE(first_attempt_at, $6), send_before = $7,
 wire_hash = CASE WHEN wire_hash = '' THEN $8 ELSE wire_hash END, lease_expires_at = $9, version = version + 1, updated_at = $6
 WHERE tenant = $1 AND id = $2 AND state = 'sending' AND lease_owner = $3 AND version = $4 AND lease_expires_at > $5`,
		a.Tenant, a.EffectID, owner, a.Version, m.now.UnixMicro(), m.now.UnixMicro(), sendBefore.UnixMicro(), a.WireHash, until.UnixMicro())
	if err := oneRow(res, err, errMoved); err != nil {
		return nil, err
	}
	e.Attempts++
	e.Version++
	b := &store.BegunAttempt{Version: e.Version, Now: m.now, Attempt: holdpoint.Attempt{ID: a.ID, EffectID: e.ID, RunID: run.ID, Number: e.Attempts,
		BegunAt: m.now, SendBefore: sendBefore, WireHash: a.WireHash}}
	var proof any
	if !a.ProofUntil.IsZero() {
		proof = a.ProofUntil.UnixMicro()
	}
	if _, err := m.ExecContext(ctx, `INSERT INTO attempts (tenant, id, effect_id, run_id, number, lease_owner, begun_at, send_before, wire_hash, proof_until)
 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, CAST($10 AS BIGINT))`,
		a.Tenant, a.ID, e.ID, run.ID, b.Number, owner, m.now.UnixMicro(), sendBefore.UnixMicro(), a.WireHash, proof); err != nil {
		return nil, err
	}
	m.note("attempt.begun", a.Tenant, run.ID, map[string]any{"effect_id": e.ID, "slot": e.Slot, "attempt_id": a.ID, "number": b.Number,
		"version": e.Version, "send_before": sendBefore, "wire_hash": a.WireHash}, nil)
	return b, nil
}

// repeated answers a begin whose first answer was lost: the attempt is open and nothing has moved since.
func (m *mover) repeated(ctx context.Context, a store.AttemptBegin, e *holdpoint.Effect) (*store.BegunAttempt, error) {
	if e.Version != a.Version+1 {
		return nil, nil
	}
	at, err := scanAttempt(m.QueryRowContext(ctx, "SELECT "+attemptColumns+" FROM attempts WHERE tenant = $1 AND id = $2 AND effect_id = $3 AND settled_at IS NULL",
		a.Tenant, a.ID, a.EffectID))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return &store.BegunAttempt{Attempt: at, Version: e.Version, Now: m.now}, err
}

// ReleaseEffects implements store.Outbox.
func (s *Store) ReleaseEffects(ctx context.Context, owner string, list []store.Settlement) error {
	for _, r := range list {
		if r.AttemptID != "" || r.State == holdpoint.EffectCompleted {
			return holdpoint.Errorf(holdpoint.CodeInternal, "an effect that was begun is settled, not released; this is a fault of the program")
		}
	}
	_, err := s.settle(ctx, "release effects", owner, list)
	return err
}

// SettleAttempts implements store.Outbox. An attempt is settled once: the same settlement again answers what stands.
// An attempt that RecoverEffects gave up as a crash keeps room for the answer of its process, which then counts if it
// is accepted and is recorded in any case.
func (s *Store) SettleAttempts(ctx context.Context, owner string, list []store.Settlement) ([]store.Settled, error) {
	return s.settle(ctx, "settle attempts", owner, list)
}

func (s *Store) settle(ctx context.Context, verb, owner string, list []store.Settlement) ([]store.Settled, error) {
	if len(list) == 0 {
		return nil, nil
	}
	all := make([]store.Settled, len(list))
	err := s.do(ctx, verb, func(t *tx) error {
		refs := make([]runRef, len(list))
		for i, r := range list {
			refs[i] = runRef{r.Tenant, r.RunID}
		}
		runs, now, err := t.lockRuns(ctx, refs)
		if err != nil {
			return err
		}
		m := mover{tx: t, now: now}
		for i, r := range list {
			run := runs[runRef{r.Tenant, r.RunID}]
			if run == nil {
				return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no run %s in this tenant", r.RunID)
			}
			m.who = r.Who
			e, counts, err := m.settleOne(ctx, owner, run, r)
			if err != nil {
				return err
			}
			all[i] = store.Settled{Effect: e, Lost: counts == lost}
			if counts == moved {
				if err := t.queue(ctx, now, r.Messages); err != nil {
					return err
				}
			}
			if all[i].RunEnded, err = m.settleRun(ctx, run, e); err != nil {
				return err
			}
			all[i].Run = *run
		}
		if err := m.flush(ctx); err != nil {
			return err
		}
		return t.notify(ctx, "effects") // successors may be due
	})
	if err != nil {
		return nil, err
	}
	s.hint("effects")
	s.hint("messages")
	return all, nil
}

// What a settlement came to.
type counting int

const (
	moved counting = iota
	stands
	lost
)

// settleOne records one outcome under the run's lock and moves the effect if the outcome counts.
func (m *mover) settleOne(ctx context.Context, owner string, run *holdpoint.Run, r store.Settlement) (holdpoint.Effect, counting, error) {
	found, err := m.effects(ctx, "tenant = $1 AND id = $2 AND run_id = $3", r.Tenant, r.EffectID, run.ID)
	if err == nil && len(found) == 0 {
		err = holdpoint.Errorf(holdpoint.CodeNotFound, "there is no effect %s in this run", r.EffectID)
	}
	if err != nil {
		return holdpoint.Effect{}, lost, err
	}
	e := found[0]
	// The lease may have run out in the meantime: as long as nobody has taken the effect over, which changes its
	// version, the outcome of the one request that was made is the best that is known.
	ours := e.State == holdpoint.EffectSending && e.LeaseOwner == owner && e.Version == r.Version
	accepted, proved := false, false
	if r.AttemptID == "" {
		unused, err := m.notBegun(ctx, e)
		if err != nil {
			return e, lost, err
		}
		ours = ours && unused
	} else {
		known, proofUntil, err := m.settleAttempt(ctx, r, ours)
		if err != nil || known {
			return e, stands, err
		}
		accepted, proved = r.Outcome.Result == holdpoint.Accepted, proofUntil.After(m.now)
	}
	switch {
	case accepted && r.State == holdpoint.EffectCompleted:
		err = m.accept(ctx, &e, r.Outcome.ProviderID)
		return e, moved, err
	case accepted && e.State == holdpoint.EffectPending:
		// Accepted without a usable reference while it waits to be sent again: it must not be.
		e.PossiblyCommitted, e.FailureClass, e.NextLookupAt = true, r.Outcome.Class, m.lookupAt(e, 0)
		err = m.move(ctx, &e, holdpoint.EffectUnknown, "doubt", "", nil)
		return e, moved, err
	case accepted && !ours && e.State == holdpoint.EffectSending:
		// The same while another attempt is under way: what comes of that one may not lead to a third without a proof.
		e.PossiblyCommitted = true
		_, err = m.ExecContext(ctx, "UPDATE effects SET possibly_committed = 1 WHERE tenant = $1 AND id = $2", e.Tenant, e.ID)
		return e, lost, err
	case !ours:
		return e, lost, nil
	}
	err = m.apply(ctx, &e, r, proved)
	return e, moved, err
}

// settleAttempt writes an outcome into its attempt. It reports whether the attempt was settled before, and until when a
// repetition of it is proved to be harmless.
func (m *mover) settleAttempt(ctx context.Context, r store.Settlement, ours bool) (known bool, proofUntil time.Time, err error) {
	var proof sql.NullInt64
	a, err := scanAttempt(m.QueryRowContext(ctx, "SELECT "+attemptColumns+", attempts.proof_until FROM attempts WHERE tenant = $1 AND id = $2 AND effect_id = $3",
		r.Tenant, r.AttemptID, r.EffectID), &proof)
	if errors.Is(err, sql.ErrNoRows) {
		return false, proofUntil, holdpoint.Errorf(holdpoint.CodeNotFound, "there is no attempt %s of this effect", r.AttemptID)
	}
	if err != nil {
		return false, proofUntil, err
	}
	if proof.Valid {
		proofUntil = instant(proof.Int64)
	}
	if a.SettledAt != nil && a.Class != holdpoint.ClassCrash {
		return true, proofUntil, nil
	}
	o := r.Outcome
	// Compared once more: an attempt is settled once, and only a presumed crash gives way to what really happened.
	row := m.QueryRowContext(ctx, `UPDATE attempts SET result = $4, phase = $5, class = $6, status = $7, provider_id = $8, detail = $9, settled_at = $10
 WHERE tenant = $1 AND id = $2 AND effect_id = $3 AND (settled_at IS NULL OR class = 'crash') RETURNING `+attemptColumns,
		r.Tenant, r.AttemptID, r.EffectID, string(o.Result), string(o.Phase), string(o.Class), o.Status, o.ProviderID, o.Detail, m.now.UnixMicro())
	if a, err = scanAttempt(row); err != nil {
		return false, proofUntil, err
	}
	kind := "attempt.settled"
	if !ours || r.Late {
		kind = "attempt.late_answer"
	}
	m.noteAttempt(kind, r.Tenant, a)
	return false, proofUntil, nil
}

// noteAttempt notes how an attempt ended.
func (m *mover) noteAttempt(kind, tenant string, a holdpoint.Attempt) {
	data := map[string]any{"effect_id": a.EffectID, "attempt_id": a.ID, "number": a.Number, "result": a.Result}
	if a.Status != 0 {
		data["status"] = a.Status
	}
	for name, value := range map[string]string{"phase": string(a.Phase), "failure_class": string(a.Class), "provider_id": a.ProviderID} {
		if value != "" {
			data[name] = value
		}
	}
	m.note(kind, tenant, a.RunID, data, nil)
}

// accept completes an effect on the word of its provider, whoever holds it now. One that has ended stays as it is: the
// answer is on record.
func (m *mover) accept(ctx context.Context, e *holdpoint.Effect, providerID string) error {
	if providerID != "" && e.State.Open() {
		e.ProviderID = providerID
	}
	switch e.State {
	case holdpoint.EffectSending:
		return m.move(ctx, e, holdpoint.EffectCompleted, "accept", "", nil)
	case holdpoint.EffectPending: // what was accepted may not be repeated: first doubt, then certainty
		e.PossiblyCommitted = true
		if err := m.move(ctx, e, holdpoint.EffectUnknown, "doubt", "", nil); err != nil {
			return err
		}
		return m.move(ctx, e, holdpoint.EffectCompleted, "found", "", nil)
	case holdpoint.EffectUnknown:
		return m.move(ctx, e, holdpoint.EffectCompleted, "found", "", nil)
	}
	return nil
}

// apply moves an effect that its owner settles other than by an acceptance.
func (m *mover) apply(ctx context.Context, e *holdpoint.Effect, r store.Settlement, proved bool) error {
	to, trigger, kind := r.State, r.Trigger, ""
	// I3: only a definite refusal says that nothing was committed.
	unclear := r.AttemptID != "" && r.Outcome.Result != holdpoint.Rejected
	e.PossiblyCommitted = e.PossiblyCommitted || r.PossiblyCommitted || unclear
	e.FailureClass, e.Reason = r.Outcome.Class, r.Reason
	if r.Spend {
		e.Spent++
	}
	if to == holdpoint.EffectPending && unclear && (!proved || r.Outcome.Result == holdpoint.Accepted) {
		to, trigger = holdpoint.EffectUnknown, "doubt"
	}
	switch {
	case to == holdpoint.EffectCompleted:
		return holdpoint.Errorf(holdpoint.CodeInternal, "only an accepted answer completes an effect; this is a fault of the program")
	case trigger == "end":
		return m.end(ctx, e, cmp.Or(r.Reason, reasonBudget))
	case to == holdpoint.EffectPending:
		at := m.now.Add(max(r.Next, 0))
		e.Hold, e.NextAttemptAt = r.Hold, &at
		switch {
		case r.Hold != holdpoint.HoldNone:
			kind = "effect.held"
		case r.AttemptID == "":
			kind = "effect.released"
		}
	case to == holdpoint.EffectUnknown && r.Next >= 0:
		e.NextLookupAt = m.lookupAt(*e, r.Next)
	case to == holdpoint.EffectFailed:
		e.Reason = cmp.Or(r.Reason, string(r.Outcome.Class))
	}
	return m.move(ctx, e, to, trigger, kind, nil)
}
