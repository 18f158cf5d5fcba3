package policy

import (
	"time"

	"github.com/holdpoint/holdpoint"
)

// MatrixRow says what one failure class means and what is done about it. The effect columns hold for what a connector
// reports; the run columns for what a workflow reports with `fail`.
type MatrixRow struct {
	Class    holdpoint.FailureClass `json:"class"`
	Ref      string                 `json:"ref"` // the row's number in the failure reference
	Detected string                 `json:"detected"`
	// PossiblyCommitted: the provider may have accepted the write, whatever the connector concluded.
	PossiblyCommitted bool `json:"possibly_committed"`
	// Retry: the same row and key may go out again. Where PossiblyCommitted, only with a proof (SPEC I3).
	Retry bool `json:"retry"`
	// Attempts is how often the row lets a request be repeated; policy's total caps it.
	Attempts   int             `json:"attempts"`
	BackoffMin time.Duration   `json:"backoff_min"` // full jitter over a ceiling that doubles from BackoffMin to BackoffMax
	BackoffMax time.Duration   `json:"backoff_max"`
	Schedule   []time.Duration `json:"schedule,omitempty"` // fixed waits instead of doubling ones
	// Budget is wall clock from the first attempt; policy's budget caps it. 0: policy's alone.
	Budget time.Duration `json:"budget"`
	// SpendsAttempt: the request counts against the attempts.
	SpendsAttempt bool                  `json:"spends_attempt"`
	Concurrency   Concurrency           `json:"concurrency"`
	Hold          holdpoint.Hold        `json:"hold"`           // set on the pending effect when it may not simply go out again
	HoldConnector bool                  `json:"hold_connector"` // the hold is on the whole connector, not on one effect
	EffectState   holdpoint.EffectState `json:"effect_state"`   // "" where no effect can meet this class
	RunState      holdpoint.RunState    `json:"run_state"`
	RunReason     holdpoint.Reason      `json:"run_reason"`
	Acts          string                `json:"acts"` // who has to act
}

// Concurrency is what a failure does to the number of requests at once to the same target.
type Concurrency string

// The changes of concurrency: keep it; halve it (never below one, one more after 20 successes); send nothing until the
// provider's own time; send nothing until somebody acts.
const (
	ConcurrencyKeep   Concurrency = "keep"
	ConcurrencyReduce Concurrency = "reduce"
	ConcurrencyGate   Concurrency = "gate"
	ConcurrencyStop   Concurrency = "stop"
)

// maxRetryAfter caps what a provider may ask for.
const maxRetryAfter = 24 * time.Hour

// Who acts.
const (
	machine  = "machine"
	operator = "operator"
	config   = "configuration owner"
	source   = "source-data owner"
	business = "business owner"
	owner    = "workflow owner"
	reviewer = "reviewer"
)

// The columns that many rows share.
const (
	pending   = holdpoint.EffectPending
	unknown   = holdpoint.EffectUnknown
	failed    = holdpoint.EffectFailed
	completed = holdpoint.EffectCompleted
	retryable = holdpoint.RunFailedRetryable
	terminal  = holdpoint.RunFailedTerminal
	due       = holdpoint.ReasonRetryDue
	suspect   = holdpoint.ReasonQuarantine
	keep      = ConcurrencyKeep
	reduce    = ConcurrencyReduce
	gate      = ConcurrencyGate
	stop      = ConcurrencyStop
	second    = time.Second
	minute    = time.Minute
	hour      = time.Hour
)

// Matrix is the failure matrix: one row for each holdpoint.FailureClass, in the order of the reference. The effect
// table (holdpoint.EffectTransitions) wins over the column EffectState: DecideEffect joins the two. Classes that only an
// effect can meet end a run in quarantine when a workflow reports them: fail closed.
var Matrix = []MatrixRow{
	{Class: "connect", Ref: "T1", Detected: "DNS, TCP or TLS failed before any request byte", Retry: true, Attempts: 8, BackoffMin: second, BackoffMax: 5 * minute, Budget: 6 * hour, SpendsAttempt: true, Concurrency: keep, EffectState: pending, RunState: retryable, RunReason: due, Acts: machine},
	{Class: "local_deadline", Ref: "T2", Detected: "our own deadline passed before any request byte", Retry: true, Attempts: 8, BackoffMin: second, BackoffMax: 5 * minute, Budget: 6 * hour, SpendsAttempt: true, Concurrency: keep, EffectState: pending, RunState: retryable, RunReason: due, Acts: machine},
	{Class: "ambiguous", Ref: "T3-T5", Detected: "request wholly or partly written, no usable answer", PossiblyCommitted: true, Retry: true, Attempts: 6, BackoffMin: 2 * second, BackoffMax: 10 * minute, Budget: 6 * hour, SpendsAttempt: true, Concurrency: reduce, EffectState: unknown, RunState: terminal, RunReason: suspect, Acts: "machine with a proof or a look-up, else " + operator},
	{Class: "key_window_over", Ref: "T6", Detected: "ambiguous, and the proved life of the key has passed", PossiblyCommitted: true, SpendsAttempt: true, Concurrency: keep, EffectState: unknown, RunState: terminal, RunReason: suspect, Acts: operator},
	{Class: "unreferenced", Ref: "T7", Detected: "success without a usable reference", SpendsAttempt: true, Concurrency: keep, EffectState: completed, RunState: terminal, RunReason: suspect, Acts: machine},
	{Class: "throttled", Ref: "H1", Detected: "429, 503 with Retry-After, 403 with a rate reason", Retry: true, BackoffMin: second, BackoffMax: 5 * minute, Budget: 24 * hour, Concurrency: gate, EffectState: pending, RunState: retryable, RunReason: due, Acts: machine},
	{Class: "overloaded", Ref: "H2", Detected: "502, 504, 503 without a hint", PossiblyCommitted: true, Retry: true, Attempts: 6, BackoffMin: 2 * second, BackoffMax: 10 * minute, Budget: 6 * hour, SpendsAttempt: true, Concurrency: reduce, EffectState: unknown, RunState: retryable, RunReason: due, Acts: machine},
	{Class: "provider_error", Ref: "H3", Detected: "500", PossiblyCommitted: true, Retry: true, Attempts: 6, BackoffMin: 2 * second, BackoffMax: 10 * minute, Budget: 6 * hour, SpendsAttempt: true, Concurrency: reduce, EffectState: unknown, RunState: retryable, RunReason: due, Acts: machine},
	{Class: "in_progress", Ref: "H4", Detected: "409: the provider is working on this key", PossiblyCommitted: true, Retry: true, Attempts: 20, BackoffMin: second, BackoffMax: 30 * second, Budget: 10 * minute, SpendsAttempt: true, Concurrency: keep, EffectState: unknown, RunState: terminal, RunReason: suspect, Acts: machine},
	{Class: "key_conflict", Ref: "H5", Detected: "the provider knows this key with another payload", PossiblyCommitted: true, SpendsAttempt: true, Concurrency: keep, EffectState: unknown, RunState: terminal, RunReason: suspect, Acts: operator},
	{Class: "already_exists", Ref: "H6", Detected: "409: the object exists", PossiblyCommitted: true, SpendsAttempt: true, Concurrency: keep, EffectState: unknown, RunState: terminal, RunReason: suspect, Acts: machine},
	{Class: "credentials", Ref: "H7", Detected: "401", Concurrency: stop, Hold: holdpoint.HoldCredentials, HoldConnector: true, EffectState: pending, RunState: terminal, RunReason: suspect, Acts: config},
	{Class: "permission", Ref: "H8", Detected: "403 without a rate reason, 404 in its place", Concurrency: stop, Hold: holdpoint.HoldPermission, HoldConnector: true, EffectState: pending, RunState: terminal, RunReason: suspect, Acts: config},
	{Class: "invalid_data", Ref: "H9", Detected: "400, 413, 422", SpendsAttempt: true, Concurrency: keep, EffectState: failed, RunState: terminal, RunReason: suspect, Acts: source},
	{Class: "declined", Ref: "H10", Detected: "402, suppressed recipient", SpendsAttempt: true, Concurrency: keep, EffectState: failed, RunState: terminal, RunReason: suspect, Acts: business},
	{Class: "gone", Ref: "H11", Detected: "410, deleted target", SpendsAttempt: true, Concurrency: stop, EffectState: failed, RunState: terminal, RunReason: suspect, Acts: operator},
	{Class: "quota", Ref: "H12", Detected: "the provider's quota is spent", BackoffMin: 5 * minute, BackoffMax: hour, Concurrency: stop, Hold: holdpoint.HoldQuota, HoldConnector: true, EffectState: pending, RunState: retryable, RunReason: due, Acts: operator},
	{Class: "partial", Ref: "H13", Detected: "207: some items accepted", PossiblyCommitted: true, SpendsAttempt: true, Concurrency: keep, EffectState: unknown, RunState: terminal, RunReason: suspect, Acts: operator},
	{Class: "redirect", Ref: "H14", Detected: "3xx; a write follows none", SpendsAttempt: true, Concurrency: stop, Hold: holdpoint.HoldConfiguration, HoldConnector: true, EffectState: pending, RunState: terminal, RunReason: suspect, Acts: operator},
	{Class: "tls", Ref: "H14", Detected: "certificate or its name is wrong", Retry: true, Attempts: 3, BackoffMin: minute, BackoffMax: 20 * minute, Budget: hour, SpendsAttempt: true, Concurrency: stop, Hold: holdpoint.HoldConfiguration, HoldConnector: true, EffectState: pending, RunState: terminal, RunReason: suspect, Acts: operator},
	{Class: "mail_temporary", Ref: "S1", Detected: "4xx before the end of the data", Retry: true, Attempts: 4, Schedule: []time.Duration{5 * minute, 15 * minute, hour, 4 * hour}, Budget: 24 * hour, SpendsAttempt: true, Concurrency: keep, EffectState: pending, RunState: terminal, RunReason: suspect, Acts: machine},
	{Class: "mail_final_dot", Ref: "S2", Detected: "no reply after the final dot", PossiblyCommitted: true, SpendsAttempt: true, Concurrency: reduce, EffectState: unknown, RunState: terminal, RunReason: suspect, Acts: "machine, then " + operator},
	{Class: "mail_permanent", Ref: "S3", Detected: "5xx", SpendsAttempt: true, Concurrency: keep, EffectState: failed, RunState: terminal, RunReason: suspect, Acts: source},
	{Class: "bounced", Ref: "S4", Detected: "a delivery report after acceptance", SpendsAttempt: true, Concurrency: keep, EffectState: completed, RunState: terminal, RunReason: suspect, Acts: business},
	{Class: "model_transport", Ref: "L1", Detected: "the model's endpoint failed or broke off", Retry: true, Attempts: 2, BackoffMin: second, BackoffMax: 20 * second, SpendsAttempt: true, Concurrency: reduce, RunState: retryable, RunReason: due, Acts: machine},
	{Class: "model_timeout", Ref: "L2", Detected: "the model did not answer in time", Retry: true, Attempts: 1, BackoffMin: second, BackoffMax: minute, SpendsAttempt: true, Concurrency: reduce, RunState: retryable, RunReason: due, Acts: "machine, then capacity owner"},
	{Class: "model_throttled", Ref: "L3", Detected: "429 from the model's endpoint", Retry: true, BackoffMin: second, BackoffMax: 5 * minute, Concurrency: gate, RunState: retryable, RunReason: due, Acts: machine},
	{Class: "not_json", Ref: "L4", Detected: "prose instead of JSON, after repair", SpendsAttempt: true, Concurrency: keep, RunState: terminal, RunReason: holdpoint.ReasonInvalidOutput, Acts: owner},
	{Class: "schema", Ref: "L5", Detected: "output breaks its contract, after repair", SpendsAttempt: true, Concurrency: keep, RunState: terminal, RunReason: holdpoint.ReasonInvalidOutput, Acts: owner},
	{Class: "truncated", Ref: "L6", Detected: "finish reason length", SpendsAttempt: true, Concurrency: keep, RunState: terminal, RunReason: holdpoint.ReasonInvalidOutput, Acts: owner},
	{Class: "refusal", Ref: "L7", Detected: "the model refused or a filter stopped it", SpendsAttempt: true, Concurrency: keep, RunState: holdpoint.RunAwaitingHuman, RunReason: holdpoint.ReasonRefusedOutput, Acts: reviewer},
	{Class: "context_too_long", Ref: "L8", Detected: "the input does not fit the model", SpendsAttempt: true, Concurrency: keep, RunState: terminal, RunReason: suspect, Acts: owner},
	{Class: "soft_failure", Ref: "L9", Detected: "valid output that breaks a rule of the business", SpendsAttempt: true, Concurrency: keep, RunState: holdpoint.RunAwaitingHuman, RunReason: holdpoint.ReasonRefusedOutput, Acts: reviewer},
	{Class: "budget", Ref: "L11", Detected: "calls, iterations, tokens, cost or time are spent", SpendsAttempt: true, Concurrency: keep, RunState: terminal, RunReason: holdpoint.ReasonBudget, Acts: owner},
	{Class: "model_missing", Ref: "L12", Detected: "the model or its endpoint does not exist", SpendsAttempt: true, Concurrency: stop, Hold: holdpoint.HoldConfiguration, RunState: terminal, RunReason: suspect, Acts: config},
	{Class: "lease_lost", Ref: "R1", Detected: "compare-and-set on owner and version found no row", Retry: true, Concurrency: keep, EffectState: pending, RunState: terminal, RunReason: suspect, Acts: machine},
	{Class: "crash", Ref: "R2", Detected: "the process ended inside a step; with an open attempt this is T3-T5", PossiblyCommitted: true, Retry: true, Attempts: 6, BackoffMin: 2 * second, BackoffMax: 10 * minute, Budget: 6 * hour, SpendsAttempt: true, Concurrency: keep, EffectState: unknown, RunState: retryable, RunReason: due, Acts: machine},
	{Class: "expired", Ref: "R3", Detected: "the business deadline has passed", Concurrency: keep, Hold: holdpoint.HoldExpired, EffectState: pending, RunState: terminal, RunReason: holdpoint.ReasonExpired, Acts: "approver"},
	{Class: "switched_off", Ref: "R4", Detected: "the switch is off", Concurrency: stop, Hold: holdpoint.HoldSwitch, EffectState: pending, RunState: terminal, RunReason: suspect, Acts: "owner of the switch"},
}

// Row gives the row of a class. A class that the matrix does not know fails closed: an effect is ambiguous and is never
// repeated, a run ends in quarantine.
func Row(c holdpoint.FailureClass) MatrixRow {
	for _, row := range Matrix {
		if row.Class == c {
			return row
		}
	}
	return MatrixRow{
		Class: c, Detected: "not in the matrix", PossiblyCommitted: true, SpendsAttempt: true, Concurrency: reduce,
		EffectState: unknown, RunState: terminal, RunReason: suspect, Acts: operator,
	}
}

// Backoff gives the wait after the given attempt (from 1): full jitter, that is anything from nothing to a ceiling that
// doubles from BackoffMin*2 up to BackoffMax; a Schedule gives its own waits plus up to a tenth. rnd gives [0, 1).
func Backoff(row MatrixRow, attempt int, rnd func() float64) time.Duration {
	attempt = max(attempt, 1)
	if n := len(row.Schedule); n > 0 {
		step := row.Schedule[min(attempt, n)-1]
		return step + time.Duration(rnd()*float64(step)/10)
	}
	ceiling := row.BackoffMin
	for i := 0; i < attempt && ceiling < row.BackoffMax; i++ {
		ceiling *= 2
	}
	return time.Duration(rnd() * float64(min(ceiling, row.BackoffMax)))
}
