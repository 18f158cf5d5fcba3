package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// classes reads the constants of holdpoint.FailureClass from their source, so that a new one cannot be forgotten.
func classes(t testing.TB) (all []holdpoint.FailureClass) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../outcome.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if kind, ok := v.Type.(*ast.Ident); ok && kind.Name == "FailureClass" {
				s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				require.NoError(t, err)
				if s != "" {
					all = append(all, holdpoint.FailureClass(s))
				}
			}
		}
		return true
	})
	require.Greater(t, len(all), 30)
	return all
}

func TestMatrixIsTotal(t *testing.T) {
	rows := map[holdpoint.FailureClass]int{}
	for _, row := range Matrix {
		rows[row.Class]++
		require.NotEmpty(t, row.Ref, row.Class)
		require.NotEmpty(t, row.Detected, row.Class)
		require.NotEmpty(t, row.Acts, row.Class)
		require.NotEmpty(t, row.Concurrency, row.Class)
		require.Contains(t, []holdpoint.RunState{holdpoint.RunFailedRetryable, holdpoint.RunFailedTerminal, holdpoint.RunAwaitingHuman}, row.RunState, row.Class)
		require.NotEmpty(t, row.RunReason, row.Class)
		require.LessOrEqual(t, row.BackoffMin, row.BackoffMax, row.Class)
		if row.PossiblyCommitted {
			require.NotEqual(t, holdpoint.EffectFailed, row.EffectState, row.Class)
			require.Empty(t, row.Hold, row.Class)
		}
		if row.Hold != holdpoint.HoldNone && row.EffectState != "" {
			require.Equal(t, holdpoint.EffectPending, row.EffectState, "holds are flags on pending")
		}
	}
	all := classes(t)
	for _, c := range all {
		require.Equal(t, 1, rows[c], "%s has one row", c)
		require.Equal(t, c, Row(c).Class)
	}
	require.Len(t, Matrix, len(all))
}

func TestUnknownClassFailsClosed(t *testing.T) {
	row := Row("made_up")
	require.True(t, row.PossiblyCommitted)
	require.False(t, row.Retry)
	require.Equal(t, holdpoint.EffectUnknown, row.EffectState)
	state, reason, delay := DecideRun("made_up", 1, 0, Retry{3, time.Hour, 8, time.Hour}, time.Minute, half)
	require.Equal(t, holdpoint.RunFailedTerminal, state)
	require.Equal(t, holdpoint.ReasonQuarantine, reason)
	require.Zero(t, delay)
}

func half() float64 { return 0.5 }

func TestBackoff(t *testing.T) {
	row := Row(holdpoint.ClassConnect)
	almost := func() float64 { return 0.999999 }
	require.Zero(t, Backoff(row, 1, func() float64 { return 0 }))
	require.Equal(t, time.Second, Backoff(row, 1, half))
	require.Equal(t, 2*time.Second, Backoff(row, 2, half))
	require.InDelta(t, float64(5*time.Minute), float64(Backoff(row, 1000, almost)), float64(time.Second))
	mail := Row(holdpoint.ClassMailTemporary)
	require.Equal(t, 5*time.Minute, Backoff(mail, 1, func() float64 { return 0 }))
	require.Equal(t, 4*time.Hour, Backoff(mail, 9, func() float64 { return 0 }))
	rapid.Check(t, func(t *rapid.T) {
		row := rapid.SampledFrom(Matrix).Draw(t, "row")
		d := Backoff(row, rapid.IntRange(-1, 1<<30).Draw(t, "attempt"), func() float64 { return rapid.Float64Range(0, 0.999).Draw(t, "rnd") })
		require.GreaterOrEqual(t, d, time.Duration(0))
		limit := row.BackoffMax
		for _, step := range row.Schedule {
			limit = max(limit, step+step/10)
		}
		require.LessOrEqual(t, d, limit)
	})
}

var (
	began   = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	budgets = Retry{RunAttempts: 3, RunBudget: 2 * time.Hour, EffectAttempts: 8, EffectBudget: 6 * time.Hour}
)

func facts(change func(*EffectFacts)) EffectFacts {
	f := EffectFacts{Attempts: 1, FirstAttempt: began, Now: began.Add(time.Minute), Retry: budgets}
	if change != nil {
		change(&f)
	}
	return f
}

func proof(f *EffectFacts) {
	f.Proved, f.SameWire, f.KeyUntil = true, true, began.Add(24*time.Hour)
}

func TestDecideEffect(t *testing.T) {
	const (
		acc = holdpoint.Accepted
		rej = holdpoint.Rejected
		unc = holdpoint.Unclear
	)
	committed := func(f *EffectFacts) { proof(f); f.PossiblyCommitted = true }
	for _, test := range []struct {
		name    string
		o       holdpoint.Outcome
		f       EffectFacts
		state   holdpoint.EffectState
		trigger string
		check   func(*testing.T, EffectVerdict)
	}{
		{"accepted clears the doubt", holdpoint.Outcome{Result: acc}, facts(committed), completed, "accept", func(t *testing.T, v EffectVerdict) {
			require.False(t, v.PossiblyCommitted)
		}},
		{"unreferenced", holdpoint.Outcome{Result: acc, Class: "unreferenced"}, facts(func(f *EffectFacts) { f.HasLookup = true }), completed, "accept", func(t *testing.T, v EffectVerdict) {
			require.True(t, v.Reconcile)
		}},
		{"connect", holdpoint.Outcome{Result: rej, Class: "connect"}, facts(nil), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.Equal(t, time.Second, v.NextAttempt)
			require.True(t, v.SpendsAttempt)
			require.False(t, v.PossiblyCommitted)
		}},
		{"connect after eight", holdpoint.Outcome{Result: rej, Class: "connect"}, facts(func(f *EffectFacts) { f.Attempts = 8 }), failed, "refuse", func(t *testing.T, v EffectVerdict) {
			require.True(t, v.Exhausted)
		}},
		{"connect after the budget", holdpoint.Outcome{Result: rej, Class: "connect"}, facts(func(f *EffectFacts) { f.Now = began.Add(6 * time.Hour) }), failed, "refuse", nil},
		{"exhausted while possibly committed", holdpoint.Outcome{Result: rej, Class: "connect"}, facts(func(f *EffectFacts) { committed(f); f.Attempts = 8 }), unknown, "refuse", func(t *testing.T, v EffectVerdict) {
			require.True(t, v.PossiblyCommitted)
		}},
		{"ambiguous without a proof", holdpoint.Outcome{Result: unc, Class: "ambiguous"}, facts(func(f *EffectFacts) { f.HasLookup = true }), unknown, "doubt", func(t *testing.T, v EffectVerdict) {
			require.True(t, v.PossiblyCommitted)
			require.True(t, v.Reconcile)
			require.Equal(t, holdpoint.ClassAmbiguous, v.Class)
		}},
		{"ambiguous with a proof", holdpoint.Outcome{Result: unc, Class: "ambiguous"}, facts(proof), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.True(t, v.PossiblyCommitted)
			require.Equal(t, 2*time.Second, v.NextAttempt)
		}},
		{"ambiguous, proof, other wire", holdpoint.Outcome{Result: unc, Class: "ambiguous"}, facts(func(f *EffectFacts) { proof(f); f.SameWire = false }), unknown, "doubt", nil},
		{"ambiguous after the key window", holdpoint.Outcome{Result: unc, Class: "ambiguous"}, facts(func(f *EffectFacts) { proof(f); f.KeyUntil = f.Now.Add(time.Second) }), unknown, "doubt", func(t *testing.T, v EffectVerdict) {
			require.Equal(t, holdpoint.ClassKeyWindowOver, v.Class)
		}},
		{"ambiguous after 80 % of the key's life", holdpoint.Outcome{Result: unc, Class: "ambiguous"}, facts(func(f *EffectFacts) { proof(f); f.KeyUntil = began.Add(70 * time.Second) }), unknown, "doubt", nil},
		{"ambiguous, attempts over", holdpoint.Outcome{Result: unc, Class: "ambiguous"}, facts(func(f *EffectFacts) { proof(f); f.Attempts = 7 }), unknown, "doubt", func(t *testing.T, v EffectVerdict) {
			require.True(t, v.Exhausted)
		}},
		{"unclear without a class", holdpoint.Outcome{Result: unc}, facts(proof), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.Equal(t, holdpoint.ClassAmbiguous, v.Class)
		}},
		{"rejected without a class proves nothing", holdpoint.Outcome{Result: rej}, facts(nil), unknown, "doubt", nil},
		{"an unknown class proves nothing", holdpoint.Outcome{Result: rej, Class: "made_up"}, facts(proof), unknown, "doubt", nil},
		{"an empty outcome proves nothing", holdpoint.Outcome{}, facts(nil), unknown, "doubt", nil},
		{"overloaded", holdpoint.Outcome{Result: unc, Class: "overloaded"}, facts(nil), unknown, "doubt", nil},
		{"overloaded with a proof", holdpoint.Outcome{Result: unc, Class: "overloaded"}, facts(proof), pending, "retry", nil},
		{"provider error that provably changed nothing", holdpoint.Outcome{Result: rej, Class: "provider_error"}, facts(nil), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.False(t, v.PossiblyCommitted)
		}},
		{"in progress", holdpoint.Outcome{Result: rej, Class: "in_progress"}, facts(proof), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.True(t, v.PossiblyCommitted)
		}},
		{"in progress, unproved", holdpoint.Outcome{Result: rej, Class: "in_progress"}, facts(nil), unknown, "doubt", nil},
		{"in progress for ten minutes", holdpoint.Outcome{Result: rej, Class: "in_progress"}, facts(func(f *EffectFacts) { proof(f); f.Now = began.Add(10 * time.Minute) }), unknown, "doubt", nil},
		{"key conflict", holdpoint.Outcome{Result: rej, Class: "key_conflict"}, facts(proof), unknown, "doubt", nil},
		{"already exists", holdpoint.Outcome{Result: rej, Class: "already_exists"}, facts(proof), unknown, "doubt", nil},
		{"partial", holdpoint.Outcome{Result: rej, Class: "partial"}, facts(proof), unknown, "doubt", nil},
		{"throttled", holdpoint.Outcome{Result: rej, Class: "throttled", RetryAfter: time.Minute}, facts(func(f *EffectFacts) { f.Attempts = 99 }), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.False(t, v.SpendsAttempt)
			require.GreaterOrEqual(t, v.NextAttempt, time.Minute)
			require.LessOrEqual(t, v.NextAttempt, 5*time.Minute)
		}},
		{"throttled for a week", holdpoint.Outcome{Result: rej, Class: "throttled", RetryAfter: 7 * 24 * time.Hour}, facts(nil), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.Equal(t, 24*time.Hour, v.NextAttempt)
		}},
		{"throttled over the budget", holdpoint.Outcome{Result: rej, Class: "throttled", RetryAfter: time.Second}, facts(func(f *EffectFacts) { f.Now = began.Add(6 * time.Hour) }), failed, "refuse", nil},
		{"throttled past the key window", holdpoint.Outcome{Result: rej, Class: "throttled", RetryAfter: 23 * time.Hour}, facts(committed), unknown, "doubt", func(t *testing.T, v EffectVerdict) {
			require.Equal(t, holdpoint.ClassKeyWindowOver, v.Class)
		}},
		{"credentials", holdpoint.Outcome{Result: rej, Class: "credentials"}, facts(nil), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.Equal(t, holdpoint.HoldCredentials, v.Hold)
			require.True(t, v.HoldConnector)
			require.Zero(t, v.NextAttempt)
		}},
		{"credentials, whatever the budget", holdpoint.Outcome{Result: rej, Class: "credentials"}, facts(func(f *EffectFacts) { f.Attempts = 99; f.Now = began.Add(99 * time.Hour) }), pending, "retry", nil},
		{"credentials while possibly committed and unproved", holdpoint.Outcome{Result: rej, Class: "credentials"}, facts(func(f *EffectFacts) { f.PossiblyCommitted = true }), unknown, "doubt", nil},
		{"permission", holdpoint.Outcome{Result: rej, Class: "permission"}, facts(nil), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.Equal(t, holdpoint.HoldPermission, v.Hold)
		}},
		{"quota", holdpoint.Outcome{Result: rej, Class: "quota", RetryAfter: time.Hour}, facts(nil), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.Equal(t, holdpoint.HoldQuota, v.Hold)
			require.Equal(t, time.Hour, v.NextAttempt)
		}},
		{"redirect", holdpoint.Outcome{Result: rej, Class: "redirect"}, facts(nil), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.Equal(t, holdpoint.HoldConfiguration, v.Hold)
		}},
		{"tls", holdpoint.Outcome{Result: rej, Class: "tls"}, facts(nil), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.Empty(t, v.Hold)
		}},
		{"tls again and again", holdpoint.Outcome{Result: rej, Class: "tls"}, facts(func(f *EffectFacts) { f.Attempts = 4 }), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.Equal(t, holdpoint.HoldConfiguration, v.Hold)
			require.True(t, v.HoldConnector)
		}},
		{"invalid data", holdpoint.Outcome{Result: rej, Class: "invalid_data"}, facts(nil), failed, "refuse", nil},
		{"invalid data while possibly committed", holdpoint.Outcome{Result: rej, Class: "invalid_data"}, facts(committed), unknown, "refuse", func(t *testing.T, v EffectVerdict) {
			require.True(t, v.PossiblyCommitted)
		}},
		{"invalid data, but unclear", holdpoint.Outcome{Result: unc, Class: "invalid_data"}, facts(nil), unknown, "doubt", nil},
		{"declined", holdpoint.Outcome{Result: rej, Class: "declined"}, facts(nil), failed, "refuse", nil},
		{"gone", holdpoint.Outcome{Result: rej, Class: "gone"}, facts(nil), failed, "refuse", nil},
		{"final dot", holdpoint.Outcome{Result: unc, Class: "mail_final_dot"}, facts(proof), unknown, "doubt", nil},
		{"crash", holdpoint.Outcome{Result: unc, Class: "crash"}, facts(nil), unknown, "doubt", nil},
		{"switched off", holdpoint.Outcome{Result: rej, Class: "switched_off", Phase: holdpoint.PhaseLocal}, facts(nil), pending, "retry", func(t *testing.T, v EffectVerdict) {
			require.False(t, v.SpendsAttempt)
			require.Equal(t, holdpoint.HoldSwitch, v.Hold)
		}},
		{"a class of models proves nothing", holdpoint.Outcome{Result: rej, Class: "schema"}, facts(nil), unknown, "doubt", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := DecideEffect(test.o, test.f, half)
			require.Equal(t, test.state, v.State)
			require.Equal(t, test.trigger, v.Trigger)
			if test.check != nil {
				test.check(t, v)
			}
		})
	}
}

// TestDecideEffectInvariants holds I3 and the effect table over all outcomes and facts.
func TestDecideEffectInvariants(t *testing.T) {
	all := append(classes(t), "", "made_up")
	rapid.Check(t, func(t *rapid.T) {
		span := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(72*time.Hour)).Draw(t, name))
		}
		o := holdpoint.Outcome{
			Result:     rapid.SampledFrom([]holdpoint.Result{holdpoint.Accepted, holdpoint.Rejected, holdpoint.Unclear, "", "odd"}).Draw(t, "result"),
			Class:      rapid.SampledFrom(all).Draw(t, "class"),
			RetryAfter: span("after") - time.Hour,
		}
		f := EffectFacts{
			PossiblyCommitted: rapid.Bool().Draw(t, "committed"), Attempts: rapid.IntRange(0, 30).Draw(t, "attempts"),
			FirstAttempt: began, Now: began.Add(span("now")), Proved: rapid.Bool().Draw(t, "proved"), KeyUntil: began.Add(span("key")),
			SameWire: rapid.Bool().Draw(t, "wire"), HasLookup: rapid.Bool().Draw(t, "lookup"), Retry: budgets,
		}
		if rapid.Bool().Draw(t, "no first") {
			f.FirstAttempt, f.KeyUntil = time.Time{}, time.Time{}
		}
		v := DecideEffect(o, f, func() float64 { return rapid.Float64Range(0, 0.999).Draw(t, "rnd") })

		require.True(t, holdpoint.Allowed(holdpoint.EffectTransitions, holdpoint.EffectSending, v.State, v.Trigger), "%+v", v)
		if f.PossiblyCommitted || o.Result != holdpoint.Rejected {
			require.NotEqual(t, holdpoint.EffectFailed, v.State, "possibly committed never fails")
		}
		if o.Result == holdpoint.Accepted {
			require.Equal(t, holdpoint.EffectCompleted, v.State)
		} else {
			require.NotEqual(t, holdpoint.EffectCompleted, v.State)
			if f.PossiblyCommitted || o.Result != holdpoint.Rejected {
				require.True(t, v.PossiblyCommitted, "the doubt is sticky")
			}
		}
		if v.State == holdpoint.EffectPending && v.PossiblyCommitted {
			require.True(t, f.Proved && f.SameWire, "no repetition without a proof")
			require.True(t, f.Now.Add(v.NextAttempt).Before(f.KeyUntil), "no repetition after the key's life")
		}
		if v.State != holdpoint.EffectPending {
			require.Empty(t, v.Hold)
			require.False(t, v.HoldConnector)
			require.Zero(t, v.NextAttempt)
		}
		require.GreaterOrEqual(t, v.NextAttempt, time.Duration(0))
		require.LessOrEqual(t, v.NextAttempt, 24*time.Hour)
		if v.State == holdpoint.EffectPending && v.Hold == holdpoint.HoldNone && v.SpendsAttempt {
			require.Less(t, f.Attempts, budgets.EffectAttempts, "policy's attempts cap every row")
		}
	})
}

func TestDecideRun(t *testing.T) {
	for class, want := range map[holdpoint.FailureClass]struct {
		state  holdpoint.RunState
		reason holdpoint.Reason
	}{
		"connect": {retryable, due}, "local_deadline": {retryable, due}, "throttled": {retryable, due}, "overloaded": {retryable, due}, "provider_error": {retryable, due},
		"quota": {retryable, due}, "crash": {retryable, due}, "model_transport": {retryable, due}, "model_timeout": {retryable, due}, "model_throttled": {retryable, due},
		"not_json": {terminal, "invalid_output"}, "schema": {terminal, "invalid_output"}, "truncated": {terminal, "invalid_output"},
		"refusal": {holdpoint.RunAwaitingHuman, "refused_output"}, "soft_failure": {holdpoint.RunAwaitingHuman, "refused_output"},
		"budget": {terminal, "budget"}, "expired": {terminal, "expired"},
	} {
		state, reason, delay := DecideRun(class, 1, time.Minute, budgets, 0, half)
		require.Equal(t, want.state, state, class)
		require.Equal(t, want.reason, reason, class)
		if state != retryable {
			require.Zero(t, delay, class)
		}
		if want.state != retryable {
			continue
		}
		_, _, delay = DecideRun(class, 1, time.Minute, budgets, 10*time.Minute, half)
		require.GreaterOrEqual(t, delay, 10*time.Minute, class)
		_, _, delay = DecideRun(class, 1, time.Minute, budgets, 99*time.Hour, half)
		require.LessOrEqual(t, delay, 24*time.Hour, class)
		state, reason, _ = DecideRun(class, 1, budgets.RunBudget, budgets, 0, half)
		require.Equal(t, terminal, state, class)
		require.Equal(t, holdpoint.ReasonBudget, reason, class)
		state, reason, _ = DecideRun(class, 3, time.Minute, budgets, 0, half)
		if SpendsRunAttempt(class) {
			require.Equal(t, terminal, state, class)
			require.Equal(t, holdpoint.ReasonBudget, reason, class)
		} else {
			require.Equal(t, retryable, state, class)
		}
	}
	quarantined := 0
	for _, c := range classes(t) {
		if _, reason, _ := DecideRun(c, 1, 0, budgets, 0, half); reason == holdpoint.ReasonQuarantine {
			quarantined++
			state, _, _ := DecideRun(c, 1, 0, budgets, 0, half)
			require.Equal(t, terminal, state)
		}
	}
	require.Equal(t, len(Matrix)-17, quarantined)
}
