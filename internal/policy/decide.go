package policy

import (
	"time"

	"github.com/holdpoint/holdpoint"
)

// EffectFacts is what is known about an effect when an attempt has ended.
type EffectFacts struct {
	PossiblyCommitted bool // before this outcome
	Attempts          int  // attempts spent, the one that has just ended included
	FirstAttempt, Now time.Time
	Proved            bool      // a valid proof for this very connector version
	KeyUntil          time.Time // end of the proved life of the key
	SameWire          bool      // a repetition would have the same wire hash
	HasLookup         bool
	Retry             Retry
}

// EffectVerdict is what an outcome makes of an effect that is sending.
type EffectVerdict struct {
	State             holdpoint.EffectState
	Hold              holdpoint.Hold // only on pending
	PossiblyCommitted bool
	Class             holdpoint.FailureClass
	NextAttempt       time.Duration // how long pending waits; 0 where it is not due by itself
	SpendsAttempt     bool
	HoldConnector     bool
	Reconcile         bool   // a look-up can find out what is unknown
	Exhausted         bool   // attempts or budget are over
	Trigger           string // the name in holdpoint.EffectTransitions
}

// DecideEffect says what becomes of a sending effect after an outcome. It is pure, and the move it names is always in
// holdpoint.EffectTransitions. What may have been committed never ends as failed: until an accepted answer it stays
// possibly committed, and is repeated only with a proof, inside the key's life and with the same wire hash (SPEC I3).
// rnd gives [0, 1).
func DecideEffect(o holdpoint.Outcome, f EffectFacts, rnd func() float64) EffectVerdict {
	row := Row(o.Class)
	v := EffectVerdict{Class: o.Class, PossiblyCommitted: f.PossiblyCommitted, SpendsAttempt: row.SpendsAttempt}
	if o.Result == holdpoint.Accepted {
		v.State, v.Trigger, v.PossiblyCommitted, v.SpendsAttempt = completed, "accept", false, true
		v.Reconcile = o.Class == holdpoint.ClassUnreferenced && f.HasLookup
		return v
	}
	// Fail closed: only a rejection of a class that effects can meet proves anything. One that the matrix marks as
	// possibly committed counts as rejected only where the connector says so and the class is merely a failed request.
	proved := o.Result == holdpoint.Rejected && row.EffectState != "" && row.EffectState != completed &&
		(!row.PossiblyCommitted || row.Class == holdpoint.ClassOverloaded || row.Class == holdpoint.ClassProviderError)
	if o.Result == holdpoint.Rejected && row.Class == holdpoint.ClassBudget {
		proved, row.EffectState = true, failed
	}
	if !proved {
		return v.doubt(o, row, f, rnd)
	}
	delay := wait(row, f.Attempts, o.RetryAfter, rnd)
	switch {
	case row.EffectState == failed:
		return v.refuse(f)
	case f.PossiblyCommitted && !f.repeatable(f.Now.Add(delay)):
		v.Reconcile, v.State, v.Trigger = f.HasLookup, unknown, "doubt"
		if f.Proved && f.SameWire {
			v.Class = holdpoint.ClassKeyWindowOver
		}
		return v
	case row.Hold != holdpoint.HoldNone && (!row.Retry || f.exhausted(row)):
		v.State, v.Trigger, v.Hold, v.HoldConnector = pending, "retry", row.Hold, row.HoldConnector
		v.NextAttempt = max(0, min(o.RetryAfter, maxRetryAfter))
		return v
	case f.exhausted(row):
		v.Exhausted = true
		return v.refuse(f)
	}
	v.State, v.Trigger, v.NextAttempt = pending, "retry", delay
	return v
}

// refuse ends the effect, or leaves it unknown where an earlier attempt may have been accepted.
func (v EffectVerdict) refuse(f EffectFacts) EffectVerdict {
	v.State, v.Trigger = failed, "refuse"
	if f.PossiblyCommitted {
		v.State, v.Reconcile = unknown, f.HasLookup
	}
	return v
}

// doubt handles what may have been accepted: the same request again where that is proved to be harmless, else unknown.
func (v EffectVerdict) doubt(o holdpoint.Outcome, row MatrixRow, f EffectFacts, rnd func() float64) EffectVerdict {
	// An unclear outcome of a row that says "not committed", or of none, is as unclear as any other; and it has cost an
	// attempt.
	if o.Result != holdpoint.Rejected && (!row.PossiblyCommitted || o.Class == holdpoint.ClassNone) {
		row = Row(holdpoint.ClassAmbiguous)
	}
	v.PossiblyCommitted, v.SpendsAttempt = true, true
	if v.Class == holdpoint.ClassNone {
		v.Class = holdpoint.ClassAmbiguous
	}
	delay := wait(row, f.Attempts, o.RetryAfter, rnd)
	if row.Retry && row.PossiblyCommitted && f.repeatable(f.Now.Add(delay)) && !f.exhausted(row) {
		v.State, v.Trigger, v.NextAttempt = pending, "retry", delay
		return v
	}
	v.State, v.Trigger, v.Reconcile = unknown, "doubt", f.HasLookup
	if row.Retry && f.Proved && f.SameWire {
		v.Exhausted = f.exhausted(row)
		if !v.Exhausted {
			v.Class = holdpoint.ClassKeyWindowOver
		}
	}
	return v
}

// repeatable reports whether sending the same request at a time is proved to be harmless. Only 80 % of the key's life
// is used: clocks differ, and requests take time.
func (f EffectFacts) repeatable(at time.Time) bool {
	if !f.Proved || !f.SameWire || f.KeyUntil.IsZero() || f.FirstAttempt.IsZero() {
		return false
	}
	life := f.KeyUntil.Sub(f.FirstAttempt)
	return life > 0 && at.Before(f.FirstAttempt.Add(life/5*4))
}

// exhausted reports whether the row or policy allows no further attempt.
func (f EffectFacts) exhausted(row MatrixRow) bool {
	spent := f.Now.Sub(f.FirstAttempt)
	if f.FirstAttempt.IsZero() {
		spent = 0
	}
	if spent >= f.Retry.EffectBudget || row.Budget > 0 && spent >= row.Budget {
		return true
	}
	return row.SpendsAttempt && (f.Attempts > row.Attempts || f.Attempts >= f.Retry.EffectAttempts)
}

// wait gives the delay before the next attempt: the row's backoff, and never before the time the provider asked for,
// of which at most a day is honoured.
func wait(row MatrixRow, attempt int, retryAfter time.Duration, rnd func() float64) time.Duration {
	delay := Backoff(row, attempt, rnd)
	if retryAfter <= 0 {
		return delay
	}
	asked := min(retryAfter, maxRetryAfter)
	return min(max(delay, asked+time.Duration(rnd()*float64(asked)/20)), maxRetryAfter)
}

// DecideRun says what becomes of a run when its workflow reports a failure. attempts counts the run's attempts with the
// one that has just failed; spent is the time of this round. A class that a workflow cannot know about ends the run in
// quarantine: fail closed. delay is how long a retryable run waits.
func DecideRun(c holdpoint.FailureClass, attempts int, spent time.Duration, r Retry, retryAfter time.Duration, rnd func() float64) (state holdpoint.RunState, reason holdpoint.Reason, delay time.Duration) {
	row := Row(c)
	if row.RunState != holdpoint.RunFailedRetryable {
		return row.RunState, row.RunReason, 0
	}
	if spent >= r.RunBudget || row.SpendsAttempt && (attempts > row.Attempts || attempts >= r.RunAttempts) {
		return holdpoint.RunFailedTerminal, holdpoint.ReasonBudget, 0
	}
	return row.RunState, row.RunReason, wait(row, attempts, retryAfter, rnd)
}

// SpendsRunAttempt reports whether a run's failure of this class counts against its attempts.
func SpendsRunAttempt(c holdpoint.FailureClass) bool { return Row(c).SpendsAttempt }
