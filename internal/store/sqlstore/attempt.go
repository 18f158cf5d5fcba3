package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// switchPause is how long an effect that met a switched-off scope between lease and begin rests before it is due again.
const switchPause = time.Second

// attemptMover begins and settles attempts, with the rows that it writes.
type attemptMover struct {
	mover
	begun    [][]any
	locked   map[runRef]*holdpoint.Effect
	attempts map[runRef]*standingAttempt
	settled  []*standingAttempt
}

var attemptRows = columns(`tenant text, id text, effect_id text, run_id text, number bigint, lease_owner text, begun_at bigint, send_before bigint,
 wire_hash text, proof_until bigint`)

// effectsOf reads effects whose runs are locked.
func (t *tx) effectsOf(ctx context.Context, names [][]any) (map[runRef]*holdpoint.Effect, error) {
	found := make(map[runRef]*holdpoint.Effect, len(names))
	err := t.each(ids, names, nil, func(with string, args []any) error {
		rows, err := t.QueryContext(ctx, with+" SELECT "+effectColumns+" FROM v JOIN effects ON effects.tenant = v.tenant AND effects.id = v.id", args...)
		_, err = collect(rows, err, func(row scanner) (holdpoint.Effect, error) {
			e, err := scanEffect(row)
			found[runRef{e.Tenant, e.ID}] = &e
			return e, err
		})
		return err
	})
	return found, err
}

// BeginAttempts implements store.Outbox. The same call again, after a lost answer, gives the attempts that it began.
func (s *Store) BeginAttempts(ctx context.Context, owner string, list []store.AttemptBegin) ([]store.BegunAttempt, error) {
	if len(list) == 0 {
		return nil, nil
	}
	return s.begins.do(ctx, beginCall{owner, list})
}

// beginCall and settleCall are the calls of one dispatcher that share a transaction with those of others.
type (
	beginCall struct {
		owner string
		list  []store.AttemptBegin
	}
	settleCall struct {
		owner string
		list  []store.Settlement
	}
)

func (s *Store) beginAll(ctx context.Context, t *tx, calls []beginCall, out [][]store.BegunAttempt, _ []error) error {
	var refs []runRef
	var names [][]any
	tenants := map[string]bool{}
	for _, c := range calls {
		for _, a := range c.list {
			refs, names = append(refs, runRef{a.Tenant, a.RunID}), append(names, []any{a.Tenant, a.EffectID})
			tenants[a.Tenant] = true
		}
	}
	// The switches first: SetSwitch waits until this transaction has ended, and this one for a flip under way.
	on, err := t.shareSwitches(ctx, tenants)
	if err != nil {
		return err
	}
	runs, now, err := t.lockRuns(ctx, refs)
	if err != nil {
		return err
	}
	effects, err := t.effectsOf(ctx, names)
	if err != nil {
		return err
	}
	m := attemptMover{mover: mover{tx: t, now: now, who: dispatcher}}
	for i, c := range calls {
		for _, a := range c.list {
			run, e := runs[runRef{a.Tenant, a.RunID}], effects[runRef{a.Tenant, a.EffectID}]
			if run == nil || e == nil || e.RunID != run.ID {
				continue
			}
			b, err := m.begin(ctx, c.owner, a, run, e, on)
			if err != nil {
				return err
			}
			if b != nil {
				out[i] = append(out[i], *b)
			}
		}
	}
	if err := m.write(ctx); err != nil {
		return err
	}
	if err := m.insert(ctx, "attempts", attemptRows, m.begun); err != nil {
		return err
	}
	return m.flush(ctx)
}

// begin opens one attempt of a locked run's effect, or says with nil that nothing may leave.
func (m *attemptMover) begin(ctx context.Context, owner string, a store.AttemptBegin, run *holdpoint.Run, e *holdpoint.Effect, on switchboard) (*store.BegunAttempt, error) {
	if e.State != holdpoint.EffectSending || e.LeaseOwner != owner || e.LeaseExpiresAt == nil || !m.now.Before(*e.LeaseExpiresAt) {
		return nil, nil
	}
	if e.Version != a.Version {
		return m.repeated(ctx, a, e)
	}
	sendBefore := m.now.Add(a.SendBefore).Truncate(time.Microsecond)
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
	e.Attempts++
	if e.FirstAttemptAt == nil {
		e.FirstAttemptAt = &m.now
	}
	if e.WireHash == "" {
		e.WireHash = a.WireHash
	}
	e.SendBefore, e.LeaseExpiresAt = &sendBefore, &until
	// Written with owner, version and state compared once more: of two begins of one lease only one can match (I5).
	m.put(e, holdpoint.EffectSending)
	b := &store.BegunAttempt{Version: e.Version, Now: m.now, Attempt: holdpoint.Attempt{ID: a.ID, EffectID: e.ID, RunID: run.ID, Number: e.Attempts,
		BegunAt: m.now, SendBefore: sendBefore, WireHash: a.WireHash}}
	var proof any
	if !a.ProofUntil.IsZero() {
		proof = a.ProofUntil.UnixMicro()
	}
	m.begun = append(m.begun, []any{a.Tenant, a.ID, e.ID, run.ID, int64(b.Number), owner, m.now.UnixMicro(), sendBefore.UnixMicro(), a.WireHash, proof})
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
	_, err := s.SettleAttempts(ctx, owner, list)
	return err
}

// SettleAttempts implements store.Outbox. An attempt is settled once: the same settlement again answers what stands.
// An attempt that RecoverEffects gave up as a crash keeps room for the answer of its process, which then counts if it
// is accepted and is recorded in any case.
func (s *Store) SettleAttempts(ctx context.Context, owner string, list []store.Settlement) ([]store.Settled, error) {
	if len(list) == 0 {
		return nil, nil
	}
	all, err := s.settlements.do(ctx, settleCall{owner, list})
	for i, x := range all {
		if !x.Run.State.Terminal() {
			s.hint("effects") // its successors may be due
		}
		if len(list[i].Messages) > 0 {
			s.hint("messages")
		}
	}
	return all, err
}

// settleAll settles under the locks of the runs.
func (s *Store) settleAll(ctx context.Context, t *tx, calls []settleCall, out [][]store.Settled, refused []error) error {
	var refs []runRef
	var names, attempts [][]any
	for _, c := range calls {
		for _, r := range c.list {
			refs, names = append(refs, runRef{r.Tenant, r.RunID}), append(names, []any{r.Tenant, r.EffectID})
			if r.AttemptID != "" {
				attempts = append(attempts, []any{r.Tenant, r.AttemptID})
			}
		}
	}
	runs, now, err := t.lockRuns(ctx, refs)
	if err != nil {
		return err
	}
	m := attemptMover{mover: mover{tx: t, now: now}}
	if m.locked, err = t.effectsOf(ctx, names); err != nil {
		return err
	}
	if m.attempts, err = t.attemptsOf(ctx, attempts); err != nil {
		return err
	}
	var touched []*holdpoint.Run
	var changed []holdpoint.Effect
	var holds []store.Settlement
	for i, c := range calls {
		if refused[i] = m.known(runs, c.list); refused[i] != nil {
			continue
		}
		out[i] = make([]store.Settled, len(c.list))
		for n, r := range c.list {
			e := m.locked[runRef{r.Tenant, r.EffectID}]
			m.who = r.Who
			counts, err := m.settleOne(ctx, c.owner, e, r)
			if err != nil {
				return err
			}
			if out[i][n] = (store.Settled{Effect: *e, Lost: counts == lost}); counts == moved {
				m.messages = append(m.messages, r.Messages...)
			}
			if r.Connector != nil && counts != stands {
				holds = append(holds, r)
			}
			changed = append(changed, *e)
			if run := runs[runRef{r.Tenant, r.RunID}]; !slices.Contains(touched, run) {
				touched = append(touched, run)
			}
		}
	}
	if err := m.writeAttempts(ctx, m.settled); err != nil {
		return err
	}
	if err := m.holdConnectors(ctx, holds); err != nil {
		return err
	}
	ended, err := m.settleRuns(ctx, touched, changed)
	if err != nil {
		return err
	}
	for i := len(calls) - 1; i >= 0; i-- {
		for n := len(out[i]) - 1; n >= 0; n-- {
			run := runs[runRef{calls[i].list[n].Tenant, calls[i].list[n].RunID}]
			out[i][n].Run, out[i][n].RunEnded = *run, ended[run]
			ended[run] = false // told once, with the last of its effects
		}
	}
	if err := m.flush(ctx); err != nil {
		return err
	}
	if !slices.ContainsFunc(touched, func(r *holdpoint.Run) bool { return !r.State.Terminal() }) {
		return nil
	}
	t.notify("effects")
	return nil // successors may be due, here or at another replica
}

// holdConnectors holds the connectors whose answers concern more than one effect, in an order in which two batches cannot
// deadlock.
func (m *attemptMover) holdConnectors(ctx context.Context, list []store.Settlement) error {
	slices.SortStableFunc(list, func(a, b store.Settlement) int {
		x, y := a.Connector, b.Connector
		return cmp.Or(cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(x.Connector, y.Connector), cmp.Compare(x.Type, y.Type))
	})
	for _, r := range list {
		m.who = r.Who
		if err := m.holdConnector(ctx, *r.Connector); err != nil {
			return err
		}
	}
	return nil
}

// known says why a settlement cannot be recorded: what it names does not exist.
func (m *attemptMover) known(runs map[runRef]*holdpoint.Run, list []store.Settlement) error {
	for _, r := range list {
		run, e := runs[runRef{r.Tenant, r.RunID}], m.locked[runRef{r.Tenant, r.EffectID}]
		if run == nil {
			return noRun(r.RunID)
		}
		if e == nil || e.RunID != run.ID {
			return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no effect %s in this run", r.EffectID)
		}
		if a := m.attempts[runRef{r.Tenant, r.AttemptID}]; r.AttemptID != "" && (a == nil || a.EffectID != e.ID) {
			return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no attempt %s of this effect", r.AttemptID)
		}
	}
	return nil
}

// What a settlement came to.
type counting int

const (
	moved counting = iota
	stands
	lost
)

// settleOne records one outcome under the run's lock and moves the effect if the outcome counts.
func (m *attemptMover) settleOne(ctx context.Context, owner string, e *holdpoint.Effect, r store.Settlement) (counting, error) {
	// The lease may have run out in the meantime: as long as nobody has taken the effect over, which changes its
	// version, the outcome of the one request that was made is the best that is known.
	ours := e.State == holdpoint.EffectSending && e.LeaseOwner == owner && e.Version == r.Version
	accepted, proved := false, false
	if r.AttemptID == "" {
		unused, err := m.notBegun(ctx, *e)
		if err != nil {
			return lost, err
		}
		ours = ours && unused
	} else {
		a, known := m.settleAttempt(r, ours)
		if known {
			return stands, nil
		}
		accepted, proved = r.Outcome.Result == holdpoint.Accepted, a.proofUntil.After(m.now)
	}
	switch {
	case accepted && r.State == holdpoint.EffectCompleted:
		return moved, m.accept(ctx, e, r.Outcome.ProviderID)
	case accepted && e.State == holdpoint.EffectPending:
		// Accepted without a usable reference while it waits to be sent again: it must not be.
		e.PossiblyCommitted, e.FailureClass, e.NextLookupAt = true, r.Outcome.Class, m.lookupAt(*e, 0)
		return moved, m.move(ctx, e, holdpoint.EffectUnknown, "doubt", "", nil)
	case accepted && !ours && e.State == holdpoint.EffectSending:
		// The same while another attempt is under way: what comes of that one may not lead to a third without a proof.
		e.PossiblyCommitted = true
		m.keep(*e, e.State, e.Version)
		return lost, nil
	case !ours:
		return lost, nil
	}
	return moved, m.apply(ctx, e, r, proved)
}

// standingAttempt is an attempt with the end of its proved key life.
type standingAttempt struct {
	holdpoint.Attempt
	tenant     string
	proofUntil time.Time
}

// attemptsOf reads attempts whose runs are locked.
func (t *tx) attemptsOf(ctx context.Context, names [][]any) (map[runRef]*standingAttempt, error) {
	found := make(map[runRef]*standingAttempt, len(names))
	err := t.each(ids, names, nil, func(with string, args []any) error {
		rows, err := t.QueryContext(ctx, with+" SELECT "+attemptColumns+", attempts.proof_until, attempts.tenant FROM v JOIN attempts ON attempts.tenant = v.tenant AND attempts.id = v.id", args...)
		_, err = collect(rows, err, func(row scanner) (a standingAttempt, err error) {
			var proof sql.NullInt64
			if a.Attempt, err = scanAttempt(row, &proof, &a.tenant); proof.Valid {
				a.proofUntil = instant(proof.Int64)
			}
			found[runRef{a.tenant, a.ID}] = &a
			return a, err
		})
		return err
	})
	return found, err
}

// settleAttempt writes an outcome into its attempt. It reports whether the attempt was settled before: that happens once,
// and only a presumed crash gives way to what really happened.
func (m *attemptMover) settleAttempt(r store.Settlement, ours bool) (a *standingAttempt, known bool) {
	a = m.attempts[runRef{r.Tenant, r.AttemptID}]
	if a.SettledAt != nil && a.Class != holdpoint.ClassCrash {
		return a, true
	}
	o := r.Outcome
	a.Result, a.Phase, a.Class, a.Status, a.ProviderID, a.Detail, a.SettledAt = o.Result, o.Phase, o.Class, o.Status, o.ProviderID, o.Detail, &m.now
	if !slices.Contains(m.settled, a) {
		m.settled = append(m.settled, a)
	}
	kind := "attempt.settled"
	if !ours || r.Late {
		kind = "attempt.late_answer"
	}
	m.noteAttempt(kind, r.Tenant, a.Attempt)
	return a, false
}

var outcomeRows = columns(`tenant text, id text, effect_id text, result text, phase text, class text, status bigint, provider_id text, detail text,
 settled_at bigint`)

// writeAttempts writes outcomes. Compared once more: what was settled other than as a crash stays.
func (t *tx) writeAttempts(ctx context.Context, list []*standingAttempt) error {
	rows := make([][]any, len(list))
	for i, a := range list {
		rows[i] = []any{a.tenant, a.ID, a.EffectID, string(a.Result), string(a.Phase), string(a.Class), int64(a.Status), a.ProviderID, a.Detail, microsPtr(a.SettledAt)}
	}
	return t.moved(ctx, outcomeRows, rows, ` UPDATE attempts SET result = v.result, phase = v.phase, class = v.class, status = v.status,
 provider_id = v.provider_id, detail = v.detail, settled_at = v.settled_at
 FROM v WHERE attempts.tenant = v.tenant AND attempts.id = v.id AND attempts.effect_id = v.effect_id AND (attempts.settled_at IS NULL OR attempts.class = 'crash')`)
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
