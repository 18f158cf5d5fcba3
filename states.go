package holdpoint

// RunState is the state of a run; there are exactly six. A Reason goes with each.
type RunState string

// The run states.
const (
	RunProcessing      RunState = "processing"
	RunAwaitingHuman   RunState = "awaiting_human"
	RunApproved        RunState = "approved"
	RunCompleted       RunState = "completed"
	RunFailedRetryable RunState = "failed_retryable"
	RunFailedTerminal  RunState = "failed_terminal"
)

// Terminal reports whether a run in this state never changes state again.
func (s RunState) Terminal() bool { return s == RunCompleted || s == RunFailedTerminal }

// Reason says why a run is in its state.
type Reason string

// The reasons.
const (
	ReasonNone          Reason = ""
	ReasonExpiredLease  Reason = "expired_lease"
	ReasonSentBack      Reason = "sent_back"
	ReasonRetryDue      Reason = "retry_due"
	ReasonInvalidOutput Reason = "invalid_output"
	ReasonRefusedOutput Reason = "refused_output"
	ReasonBudget        Reason = "budget"
	ReasonSteals        Reason = "steals"
	ReasonQuarantine    Reason = "quarantine"
	ReasonRejected      Reason = "rejected"
	ReasonExpired       Reason = "expired"
	ReasonWithdrawn     Reason = "withdrawn"
	ReasonCancelled     Reason = "cancelled"
	ReasonEffectFailed  Reason = "effect_failed"
	ReasonAbandoned     Reason = "abandoned"
	ReasonReplaced      Reason = "replaced"
)

// StepState is the state of a durable checkpoint inside a run.
type StepState string

// The step states.
const (
	StepPending   StepState = "pending"
	StepRunning   StepState = "running"
	StepCompleted StepState = "completed"
	StepFailed    StepState = "failed"
	StepUncertain StepState = "uncertain"
)

// ApprovalState is the state of one question put to people.
type ApprovalState string

// The approval states.
const (
	ApprovalPending     ApprovalState = "pending"
	ApprovalApproved    ApprovalState = "approved"
	ApprovalRejected    ApprovalState = "rejected"
	ApprovalSentBack    ApprovalState = "sent_back"
	ApprovalExpired     ApprovalState = "expired"
	ApprovalWithdrawn   ApprovalState = "withdrawn"
	ApprovalInvalidated ApprovalState = "invalidated"
)

// Decision is what one named person answers.
type Decision string

// The decisions.
const (
	DecisionApprove  Decision = "approve"
	DecisionReject   Decision = "reject"
	DecisionSendBack Decision = "send_back"
)

// EffectState is the state of a row in the outbox.
type EffectState string

// The effect states.
const (
	EffectPending   EffectState = "pending"
	EffectSending   EffectState = "sending"
	EffectCompleted EffectState = "completed"
	EffectUnknown   EffectState = "unknown"
	EffectFailed    EffectState = "failed"
)

// Open reports whether a run must still wait for an effect in this state.
func (s EffectState) Open() bool {
	return s == EffectPending || s == EffectSending || s == EffectUnknown
}

// Hold is a flag on a pending effect: it may not be sent until somebody or something clears it.
type Hold string

// The holds.
const (
	HoldNone          Hold = ""
	HoldSwitch        Hold = "switch"
	HoldCredentials   Hold = "credentials"
	HoldPermission    Hold = "permission"
	HoldQuota         Hold = "quota"
	HoldConfiguration Hold = "configuration"
	HoldAuthority     Hold = "authority"
	HoldExpired       Hold = "expired"
	HoldRestored      Hold = "restored"
)

// Verdict is what an operator records about an unknown effect.
type Verdict string

// The verdicts.
const (
	VerdictSent    Verdict = "sent"
	VerdictNotSent Verdict = "not_sent"
	VerdictAbandon Verdict = "abandon"
)

// ClaimOutcome is the answer to a claim.
type ClaimOutcome string

// The claim outcomes.
const (
	Claimed   ClaimOutcome = "claimed"
	Duplicate ClaimOutcome = "duplicate"
	Busy      ClaimOutcome = "busy"
	Mismatch  ClaimOutcome = "mismatch"
)

// Transition is one allowed move. From is empty for creation. Trigger names the business event that causes it; the
// same trigger never leads from one state to two states without a Guard that tells them apart.
type Transition[S ~string] struct {
	From    S
	To      S
	Trigger string
	Who     string // claim, owner, decision, dispatcher, sweeper, operator: who may cause it
	Guard   string // the condition, in words; "" if none
}

// RunTransitions is the run's table (SPEC 1). Engine, SQL checks, documentation and console read it.
var RunTransitions = []Transition[RunState]{
	{"", RunProcessing, "claim", "claim", "new key"},
	{RunProcessing, RunProcessing, "recover", "claim", "the lease has expired and the steal cap is not reached"},
	{RunFailedRetryable, RunProcessing, "recover", "claim", "the retry time has come and the budget is not over"},
	{RunProcessing, RunAwaitingHuman, "hold", "owner", "valid draft that the gate holds, or a review"},
	{RunProcessing, RunApproved, "release", "owner", "exception passed or cancel window opened"},
	{RunProcessing, RunCompleted, "complete", "owner", "no effect open"},
	{RunProcessing, RunFailedRetryable, "fail", "owner", "the failure class allows another attempt inside the budget"},
	{RunProcessing, RunFailedTerminal, "give_up", "owner", "failure class, repair or budget exhausted, quarantine"},
	{RunProcessing, RunFailedTerminal, "steal_cap", "sweeper", "the lease has expired and was stolen too often, or the budget is over"},
	{RunFailedRetryable, RunFailedTerminal, "budget_over", "sweeper", "budget over"},
	{RunProcessing, RunFailedTerminal, "replace", "operator", "the lease has expired and a correction takes the run's place"},
	{RunFailedRetryable, RunFailedTerminal, "cancel", "operator", ""},
	{RunFailedRetryable, RunFailedTerminal, "replace", "operator", "a correction takes the run's place"},
	{RunAwaitingHuman, RunAwaitingHuman, "edit", "decision", "new digest, partial quorum or escalation"},
	{RunAwaitingHuman, RunApproved, "approve", "decision", "quorum complete"},
	{RunAwaitingHuman, RunFailedTerminal, "reject", "decision", ""},
	{RunAwaitingHuman, RunFailedTerminal, "expire", "sweeper", "approve_by has passed"},
	{RunAwaitingHuman, RunFailedTerminal, "withdraw", "operator", ""},
	{RunAwaitingHuman, RunFailedTerminal, "replace", "operator", "a correction takes the run's place"},
	{RunAwaitingHuman, RunFailedRetryable, "send_back", "decision", ""},
	{RunApproved, RunCompleted, "settle", "dispatcher", "no effect open and all completed"},
	{RunApproved, RunFailedTerminal, "settle", "dispatcher", "no effect open and some failed, cancelled or abandoned"},
}

// StepTransitions is the step's table (R1.6).
var StepTransitions = []Transition[StepState]{
	{"", StepRunning, "begin", "owner", ""},
	{StepPending, StepRunning, "begin", "owner", ""},
	{StepFailed, StepRunning, "begin", "owner", ""},
	{StepRunning, StepRunning, "begin", "owner", "begun under an earlier lease and not a declared side effect"},
	{StepRunning, StepUncertain, "lose", "owner", "begun under an earlier lease and a declared side effect"},
	{StepRunning, StepCompleted, "finish", "owner", ""},
	{StepRunning, StepFailed, "fail", "owner", ""},
	{StepUncertain, StepCompleted, "resolve_done", "operator", ""},
	{StepUncertain, StepPending, "resolve_not_done", "operator", ""},
}

// ApprovalTransitions is the approval's table (R3.3).
var ApprovalTransitions = []Transition[ApprovalState]{
	{"", ApprovalPending, "create", "owner", "the gate holds a draft"},
	{ApprovalPending, ApprovalPending, "edit", "decision", "new revision and digest"},
	{ApprovalPending, ApprovalApproved, "approve", "decision", "quorum complete"},
	{ApprovalPending, ApprovalRejected, "reject", "decision", ""},
	{ApprovalPending, ApprovalSentBack, "send_back", "decision", ""},
	{ApprovalPending, ApprovalExpired, "expire", "sweeper", "approve_by has passed"},
	{ApprovalPending, ApprovalWithdrawn, "withdraw", "operator", ""},
	{ApprovalPending, ApprovalInvalidated, "invalidate", "operator", "floor raised or run replaced"},
	{ApprovalApproved, ApprovalWithdrawn, "withdraw", "operator", "only effects not begun"},
}

// EffectTransitions is the effect's table (R4.2); it wins over the column "state after" of the failure matrix.
var EffectTransitions = []Transition[EffectState]{
	{"", EffectPending, "release", "decision", ""},
	{EffectPending, EffectSending, "lease", "dispatcher", "switch, holds, window, execute_by, order and run state checked in the same statement"},
	{EffectPending, EffectUnknown, "doubt", "dispatcher", "possibly committed and a repetition is no longer proved"},
	{EffectPending, EffectFailed, "end", "operator", "cancelled, withdrawn, predecessor failed or budget over; not possibly committed"},
	{EffectPending, EffectUnknown, "end", "operator", "cancelled, withdrawn, predecessor failed or budget over; possibly committed"},
	{EffectSending, EffectCompleted, "accept", "dispatcher", "also a late answer, whatever the lease"},
	{EffectSending, EffectFailed, "refuse", "dispatcher", "definite refusal, not possibly committed"},
	{EffectSending, EffectUnknown, "refuse", "dispatcher", "definite refusal, possibly committed by an earlier attempt"},
	{EffectSending, EffectPending, "retry", "dispatcher", "provably not accepted, or ambiguous with a valid proof and key life"},
	{EffectSending, EffectUnknown, "doubt", "dispatcher", "ambiguous, or crash with an open attempt"},
	{EffectUnknown, EffectCompleted, "found", "dispatcher", "late answer or look-up"},
	{EffectUnknown, EffectCompleted, "sent", "operator", "verdict"},
	{EffectUnknown, EffectPending, "absent", "dispatcher", "proved absent, or valid proof and key life"},
	{EffectUnknown, EffectPending, "not_sent", "operator", "verdict"},
	{EffectUnknown, EffectFailed, "abandon", "operator", "verdict"},
}

// Allowed reports whether table has a move from one state to another under trigger.
func Allowed[S ~string](table []Transition[S], from, to S, trigger string) bool {
	for _, t := range table {
		if t.From == from && t.To == to && t.Trigger == trigger {
			return true
		}
	}
	return false
}
