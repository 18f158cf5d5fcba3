// Package store is the contract of Holdpoint's database: whole-transaction verbs named after business events.
//
// Rules that every implementation keeps, and that storetest checks on each of them:
//
//   - One verb is one transaction. Evidence events and messages that a verb takes are written in it (I6).
//   - Every transition is compare-and-set on expected state and version, and on owner and unexpired lease where there
//     is one (I5). Zero rows is a typed answer (*holdpoint.Error with lease_lost, stale_digest, …), never silence.
//   - One clock decides: the database's, one value per statement (I11). Callers pass durations, not instants.
//   - Rows of runs are locked before rows that hang on them, in the order of tenant, scope and key, so that replicas
//     cannot deadlock.
//   - Content crosses this border sealed. The store never sees a payload, a draft or a target in clear.
//
// Errors are *holdpoint.Error: unavailable (the store cannot be reached, or contention outlasted its bound; the whole
// call may be repeated), not_found, or the code that the verb names.
package store

import (
	"context"
	"time"

	"github.com/holdpoint/holdpoint"
)

// Store is everything that the engine asks of a database.
type Store interface {
	Runs
	Gates
	Outbox
	Switches
	Messages
	People
	Policies
	Reads

	// Now is the database's clock.
	Now(ctx context.Context) (time.Time, error)
	// Ping fails if the store cannot serve a write.
	Ping(ctx context.Context) error
	// Wake gives a channel that receives when another process may have committed work of a kind ("effects",
	// "messages", "policy"). It is a hint; the poll is the truth. It may never receive.
	Wake() <-chan string
	Close() error
}

// Fence is what every work call must hold: the run's lease, named by owner and version, and the execution it was bound
// to. A verb that takes one answers lease_lost, or lease_other_execution when only the execution differs.
type Fence struct {
	Tenant      string
	RunID       string
	Owner       string
	Version     int64
	ExecutionID string
	Call        string // hash of the call's kind and body: a repeated identical call is told apart from a lost lease
}

// Claim is one attempt to become a run's only worker. KeyHMAC is unique per (Tenant, Scope). In one ClaimRuns batch
// each (Tenant, Scope, KeyHMAC) stands once; Extra counts further identical deliveries that wait for the same answer.
type Claim struct {
	RunID           string // used if the run is new
	Tenant          string
	Scope           string
	Workflow        string
	Key             string
	KeyHMAC         string
	KeyFlag         string
	Operation       *holdpoint.Operation
	Fingerprint     string
	FingerprintRule string
	Ignore          []string
	Owner           string
	OwnerExplicit   bool // the caller chose the owner, so a repeat on a live lease answers claimed again
	ExecutionID     string
	Lease           time.Duration
	Cap             time.Duration
	AttemptLimit    int
	Budget          time.Duration
	StealCap        int
	PolicyHash      string
	TriggerSource   string
	WorkflowVersion string
	DeliveryID      string
	Payload         []byte // sealed under the run key
	Initiator       []byte // sealed
	ResumeURL       []byte // sealed
	RunKey          []byte // wrapped
	Extra           int
	Who             holdpoint.Who
}

// ClaimResult is the answer to one Claim, true of one moment within the call. RuleDiffers means that nothing was
// decided: the run's fingerprint was made under Run.Ignore, so the caller recomputes and claims again.
type ClaimResult struct {
	Outcome       holdpoint.ClaimOutcome
	Run           holdpoint.Run
	Lease         *holdpoint.Lease // with claimed
	RecoveredFrom string           // "expired_lease" or "failed_retryable" when a claim took a run over
	Repeated      bool             // claimed again by the owner that holds the live lease
	RetryAfter    time.Duration    // with busy
	RuleDiffers   bool
	Now           time.Time
}

// Draft is an accepted draft with the effects that policy rendered from it and the approval that asks about it.
type Draft struct {
	Fence      Fence
	Draft      holdpoint.Draft
	Output     []byte // sealed
	SourceURL  []byte // sealed
	Approval   holdpoint.Approval
	ApproveBy  time.Duration // from the transaction's clock
	Effects    []PlannedEffect
	Challenges []holdpoint.Challenge
	Messages   []Message
	Who        holdpoint.Who
	Data       map[string]any // data of the event draft.accepted
}

// PlannedEffect is a rendered effect before its release: it belongs to the draft revision and cannot be leased.
type PlannedEffect struct {
	holdpoint.EffectSpec
	Target  []byte // sealed
	Payload []byte // sealed exact bytes
}

// Message is one row for the message lane. Data is JSON with ids and the consequence sentence, sealed under the
// tenant's index key.
type Message struct {
	holdpoint.MessageRecord
	Data   []byte
	Policy string // of a leased one: hash of the tenant's active policy, read as it was leased
}

// Runs are the verbs of claims, leases, steps and ends.
type Runs interface {
	// ClaimRuns makes the single claim statement for a batch (INSERT … ON CONFLICT … DO UPDATE … WHERE … RETURNING)
	// and, in the same transaction, counts those that did not win. Results are in the order of the claims. It closes
	// the race of any number of simultaneous deliveries of one key.
	ClaimRuns(ctx context.Context, claims []Claim) ([]ClaimResult, error)
	// RenewLease moves the expiry to extend from now, never past the cap, without changing the version.
	RenewLease(ctx context.Context, f Fence, extend time.Duration) (holdpoint.Lease, error)

	// BeginStep answers what stands: Outcome run, done, in_progress or uncertain.
	BeginStep(ctx context.Context, f Fence, s StepBegin) (StepResult, error)
	// FinishStep completes or fails a step begun under this lease. The same result again answers what stands.
	FinishStep(ctx context.Context, f Fence, s StepFinish) (holdpoint.Step, error)
	// ResolveStep records a person's word about an uncertain step; not_allowed_now if it is not uncertain.
	ResolveStep(ctx context.Context, r StepResolve) (holdpoint.Step, error)

	// RejectDraft counts a repair (the run stays processing) and records the faults by code. not counted twice for an
	// identical call.
	RejectDraft(ctx context.Context, f Fence, r DraftRejection) (holdpoint.Run, error)
	// HoldDraft stores the draft, its effects and its approval and moves the run to awaiting_human.
	HoldDraft(ctx context.Context, d Draft) (holdpoint.Run, holdpoint.Approval, error)
	// EndWork moves a processing run to failed_retryable, failed_terminal or completed on its owner's word.
	EndWork(ctx context.Context, f Fence, e WorkEnd) (holdpoint.Run, error)

	// ReplaceRun makes (or links) the run that corrects another one and records both directions; a pending approval of
	// the old run becomes invalidated and its run ends replaced. Created is false if the new key's run existed.
	// not_allowed_now if either side is already part of another replacement.
	ReplaceRun(ctx context.Context, r Replacement) (old, new holdpoint.Run, created bool, err error)
	// CancelRun ends a run on an operator's word where the table allows it: failed_retryable, awaiting_human
	// (withdrawing its approval) or approved (cancelling every effect not begun). Otherwise not_allowed_now.
	CancelRun(ctx context.Context, tenant, runID string, reasonText []byte, who holdpoint.Who) (holdpoint.Run, error)

	// SweepRuns moves what time has moved, at most limit rows of each kind: expired approvals to expired (their runs
	// to failed_terminal), runs whose budget or steals are over to failed_terminal, and notes run.claimable once for
	// each run that fell due, and the last duplicate of runs that have been quiet. It returns what it did so that the
	// engine can send messages.
	SweepRuns(ctx context.Context, limit int) ([]Swept, error)
	// WorkDurations gives up to limit most recent measured times from claim to hand-over of a workflow.
	WorkDurations(ctx context.Context, tenant, workflow string, limit int) ([]time.Duration, error)
}

// StepBegin asks whether a step is to be run.
type StepBegin struct {
	Name       string
	SideEffect bool
	InputHash  string
	Who        holdpoint.Who
}

// StepResult is the answer to BeginStep. Result is sealed.
type StepResult struct {
	Outcome    string // run, done, in_progress, uncertain
	Step       holdpoint.Step
	Result     []byte
	RetryAfter time.Duration // with in_progress
}

// StepFinish ends a step; Class is set for a failure.
type StepFinish struct {
	Name       string
	Result     []byte // sealed
	ResultHash string
	Class      holdpoint.FailureClass
	Who        holdpoint.Who
}

// StepResolve is a person's word about an uncertain step.
type StepResolve struct {
	Tenant, RunID, Name string
	Done                bool
	Result              []byte // sealed
	ResultHash          string
	ReasonText          []byte // sealed free text
	Who                 holdpoint.Who
}

// DraftRejection records one output that failed its contract. When Terminal is set the run ends in failed_terminal.
type DraftRejection struct {
	Class    holdpoint.FailureClass
	Codes    []string // fault codes with pointers, no content
	Terminal bool
	Reason   holdpoint.Reason
	Model    holdpoint.Model
	Messages []Message
	Who      holdpoint.Who
}

// WorkEnd is how an owner leaves a run.
type WorkEnd struct {
	State    holdpoint.RunState
	Reason   holdpoint.Reason
	Class    holdpoint.FailureClass
	RetryIn  time.Duration // with failed_retryable
	Result   []byte        // sealed, with completed
	Text     []byte        // sealed free text of a failure
	Messages []Message
	Who      holdpoint.Who
}

// Replacement links a correction to the run that it corrects. New carries the new run's identity and content; it is
// created in failed_retryable, due now, so that any execution can claim it.
type Replacement struct {
	Tenant     string
	OldRunID   string
	New        Claim
	ReasonText []byte // sealed
	Who        holdpoint.Who
}

// Swept is one thing that SweepRuns did. What is the event type: approval.expired, run.failed, run.claimable.
type Swept struct {
	What     string
	Run      holdpoint.Run
	Approval holdpoint.Approval
}

// Gates are the verbs of approvals and decisions.
type Gates interface {
	// Decide records one person's decision and, in the same transaction, moves approval and run and releases the
	// planned effects of the approval's revision (with execute_by). already_decided (Detail "standing") if the
	// approval is no longer pending, stale_digest if the digest is not the approval's, not_allowed_now (Detail
	// "standing") if its time is over or it does not offer the decision. The same decision of the same person again
	// answers what stands.
	Decide(ctx context.Context, d Decision) (DecisionResult, error)
	// WithdrawApproval takes a question back. Pending: the run ends withdrawn. Approved: every effect not begun ends
	// (failed, or unknown if possibly committed); not_allowed_now if nothing is left to withdraw.
	WithdrawApproval(ctx context.Context, tenant, approvalID string, reasonText []byte, who holdpoint.Who) (DecisionResult, error)
	// MintChallengeToken adds a token hash to a challenge, just before its message leaves.
	MintChallengeToken(ctx context.Context, tenant, challengeID, tokenHash string) error
	// ChallengeByToken finds the challenge of a token hash; not_found if unknown. It says nothing about validity.
	ChallengeByToken(ctx context.Context, tokenHash string) (holdpoint.Challenge, error)
	// OpenChallenge notes the first opening, if the challenge is live (not used, revoked or expired by the database's
	// clock, approval pending); not_found otherwise.
	OpenChallenge(ctx context.Context, tenant, challengeID string) (holdpoint.Challenge, error)
}

// Decision is one person's answer to one digest.
type Decision struct {
	Tenant     string
	ID         string
	ApprovalID string
	Digest     string
	Person     holdpoint.Person
	Decision   holdpoint.Decision
	ReasonText []byte // sealed
	Assurance  string
	How        string
	Budget     time.Duration // fresh run budget for the next round, with send_back
	Messages   []Message
	Who        holdpoint.Who
}

// DecisionResult is what stands after a decision or withdrawal.
type DecisionResult struct {
	Approval holdpoint.Approval
	Run      holdpoint.Run
	Decision holdpoint.DecisionRecord
	Effects  []holdpoint.Effect
	Repeated bool
}

// Outbox are the verbs of effects and attempts. Only the dispatcher calls the first five.
type Outbox interface {
	// LeaseEffects moves up to limit due effects from pending to sending in one statement that also checks switch,
	// holds, execute_by, order and the run's state (I2); `FOR UPDATE SKIP LOCKED` where there is one. Effects whose
	// provider is in skip are passed over. Effects past execute_by get hold expired in the same call. Policy knows the
	// budget: the dispatcher ends what is past it through ReleaseEffects or SettleAttempts with the trigger "end".
	LeaseEffects(ctx context.Context, l EffectLease) ([]LeasedEffect, error)
	// BeginAttempts commits attempt rows, again under the switch: in a transaction that holds the switch rows against
	// a flip. Effects whose switch is off, or whose lease is lost, are returned to pending (or left) and missing from
	// the result.
	BeginAttempts(ctx context.Context, owner string, a []AttemptBegin) ([]BegunAttempt, error)
	// ReleaseEffects returns leased effects that were not begun to pending, or holds, fails or doubts them, as the
	// dispatcher decided before the first byte.
	ReleaseEffects(ctx context.Context, owner string, r []Settlement) error
	// SettleAttempts records outcomes and moves effects; when no effect of a run is open the run ends. An accepted
	// outcome counts whatever the lease (a late answer); any other needs owner and version.
	SettleAttempts(ctx context.Context, owner string, s []Settlement) ([]Settled, error)
	// RecoverEffects moves sending effects whose lease has expired: with an open attempt to unknown (class crash),
	// without one back to pending.
	RecoverEffects(ctx context.Context, limit int) ([]Settled, error)

	// LeaseLookups leases unknown effects whose next look-up is due, never before send_before.
	LeaseLookups(ctx context.Context, owner string, lease time.Duration, limit int) ([]LeasedEffect, error)
	// SettleLookup records a look-up: found completes, proved_absent returns to pending with possibly_committed cleared,
	// repeatable returns to pending and stays possibly_committed, anything else schedules the next look-up (Next not
	// positive: none, a person is needed). An effect that was cancelled, withdrawn or closed while it was in doubt is not
	// sent again: proved_absent ends it, repeatable leaves it unknown.
	SettleLookup(ctx context.Context, owner string, l LookupResult) (Settled, error)

	// ResolveEffect records an operator's verdict on an unknown effect; not_allowed_now otherwise.
	ResolveEffect(ctx context.Context, r EffectVerdict) (Settled, error)
	// CancelEffect ends a pending effect (failed, or unknown if possibly committed); not_allowed_now if it has begun.
	CancelEffect(ctx context.Context, tenant, effectID string, reasonText []byte, who holdpoint.Who) (Settled, error)
	// ScheduleLookup makes the next look-up of an unknown effect due now.
	ScheduleLookup(ctx context.Context, tenant, effectID string, who holdpoint.Who) (holdpoint.Effect, error)
	// HoldEffects sets a hold on pending effects of released decisions (used for authority and configuration).
	HoldEffects(ctx context.Context, tenant string, effectIDs []string, hold holdpoint.Hold, who holdpoint.Who) (int, error)
	// HoldConnector stops everything of one connector (and type, if not ""); ReleaseConnector lets it go again and
	// clears the holds credentials, permission, quota and configuration of its pending effects whose connector version is
	// version. It returns the number of effects released.
	HoldConnector(ctx context.Context, h ConnectorHold, who holdpoint.Who) error
	ReleaseConnector(ctx context.Context, tenant, connector, version string, who holdpoint.Who) (int, error)
	ConnectorHolds(ctx context.Context, tenant string) ([]ConnectorHold, error)
	// CloseExpired ends effects that have been held expired for longer than keep[workflow] (default key "").
	CloseExpired(ctx context.Context, tenant string, keep map[string]time.Duration, limit int) ([]Settled, error)

	// PutProof records that a connector version was shown to honour its idempotency key. Tests are its only caller
	// until `connector prove` exists.
	PutProof(ctx context.Context, p Proof) error
	// Proof gives the valid proof of a connector version, or nil.
	Proof(ctx context.Context, tenant, connector, version string) (*Proof, error)
}

// EffectLease asks for due effects.
type EffectLease struct {
	Owner   string
	For     time.Duration
	Limit   int
	Skip    []string // providers to pass over
	Enabled bool     // AI_ACTIONS_ENABLED was exactly true; false leases nothing
}

// LeasedEffect is an effect with its sealed content, the wrapped key of its run and what its lease read to judge it by.
type LeasedEffect struct {
	holdpoint.Effect
	Roles   []string         // of the gate that was decided
	Decider holdpoint.Person // whose approval released it, as they stand now; zero if there is none
	KeyLife time.Duration    // of the valid proof of its connector version; 0 if there is none
	Policy  string           // hash of the tenant's active policy, read after the effect was leased
	Target  []byte
	Payload []byte
	RunKey  []byte
	RunKeyT string // the run's idempotency key text, for logs by hash and for templates
	Now     time.Time
}

// AttemptBegin opens one attempt. SendBefore is counted from the transaction's clock.
type AttemptBegin struct {
	ID         string
	Tenant     string
	EffectID   string
	RunID      string
	Version    int64 // the effect's version as leased
	WireHash   string
	SendBefore time.Duration
	ProofUntil time.Time // end of the proved key life, zero if none
}

// BegunAttempt is a committed attempt row.
type BegunAttempt struct {
	holdpoint.Attempt
	Version int64 // the effect's version now
	Now     time.Time
}

// Settlement is what became of a leased effect: outcome and the policy's verdict on it.
type Settlement struct {
	Tenant            string
	RunID             string
	EffectID          string
	AttemptID         string // "" if none was begun
	Version           int64
	Outcome           holdpoint.Outcome
	State             holdpoint.EffectState
	Trigger           string
	Hold              holdpoint.Hold
	Reason            string
	PossiblyCommitted bool
	Spend             bool
	Next              time.Duration // delay of the next attempt (pending) or the first look-up (unknown); negative: none
	Late              bool
	Connector         *ConnectorHold // also hold the whole connector, in the same transaction; once, however often this is repeated
	Messages          []Message
	Who               holdpoint.Who
}

// Settled is what stands for one effect, and for its run when the last open effect ended.
type Settled struct {
	Effect   holdpoint.Effect
	Run      holdpoint.Run
	RunEnded bool
	Lost     bool // the lease was not ours any more and the outcome did not count
}

// LookupResult is the answer of one look-up.
type LookupResult struct {
	Tenant     string
	RunID      string
	EffectID   string
	Version    int64
	State      string // found, absent, proved_absent, repeatable, unclear
	ProviderID string
	Detail     string
	Next       time.Duration // when to look again; not positive: no more
	Who        holdpoint.Who
}

// EffectVerdict is an operator's word about an unknown effect.
type EffectVerdict struct {
	Tenant     string
	EffectID   string
	Verdict    holdpoint.Verdict
	ProviderID string
	ReasonText []byte // sealed
	Who        holdpoint.Who
}

// ConnectorHold stops a connector, or one type of it. Until is zero when only a person can lift it.
type ConnectorHold struct {
	Tenant    string         `json:"tenant"`
	Connector string         `json:"connector"`
	Type      string         `json:"type,omitempty"`
	Hold      holdpoint.Hold `json:"hold"`
	Detail    string         `json:"detail,omitempty"`
	Until     time.Time      `json:"until,omitzero"`
	Since     time.Time      `json:"since"`
}

// Proof is evidence that a connector version honours its idempotency key for KeyLife.
type Proof struct {
	Tenant, Connector, Version string
	KeyLife                    time.Duration
	ProvedAt, ExpiresAt        time.Time
}

// Switches are the verbs of the kill switch.
type Switches interface {
	// SetSwitch flips one scope ("global" has tenant ""), taking the lock that BeginAttempts shares, so that after it
	// returns nothing can begin under the old value. It returns the attempts begun and not settled.
	SetSwitch(ctx context.Context, s SwitchChange) (holdpoint.Switch, []holdpoint.Attempt, error)
	// Switches lists the stored switches that concern a tenant, global first.
	Switches(ctx context.Context, tenant string) ([]holdpoint.Switch, error)
	// InFlight lists attempts begun and not settled.
	InFlight(ctx context.Context, tenant string) ([]holdpoint.Attempt, error)
}

// SwitchChange is one flip. Tenant is where the evidence goes; for scope global the row itself belongs to no tenant.
type SwitchChange struct {
	Tenant     string
	Scope      string
	On         bool
	ReasonText []byte // sealed
	Who        holdpoint.Who
}

// Messages are the verbs of the message lane.
type Messages interface {
	// AddMessages queues messages that belong to no transition of their own.
	AddMessages(ctx context.Context, m []Message) error
	// LeaseMessages leases due messages of tenants whose scope messages is on (missing = on).
	LeaseMessages(ctx context.Context, owner string, lease time.Duration, limit int) ([]Message, error)
	// SettleMessage records a delivery, a drop, a final failure, or the next try after delay.
	SettleMessage(ctx context.Context, owner string, id, tenant, state, detail string, delay time.Duration) error
}

// People are the verbs of persons, grants, keys and sessions.
type People interface {
	CreatePerson(ctx context.Context, p holdpoint.Person, who holdpoint.Who) error // exists
	PersonByEmail(ctx context.Context, tenant, email string) (holdpoint.Person, error)
	PersonByID(ctx context.Context, tenant, id string) (holdpoint.Person, error)
	ListPeople(ctx context.Context, tenant string) ([]holdpoint.Person, error)
	SetPassword(ctx context.Context, tenant, id, phc string, mustChange bool, who holdpoint.Who) error // ends all sessions of the person
	SetDisabled(ctx context.Context, tenant, id string, disabled bool, who holdpoint.Who) error        // disabling ends sessions and revokes tokens
	SetLanguage(ctx context.Context, tenant, id, language string) error
	GrantRole(ctx context.Context, tenant, id, role string, who holdpoint.Who) error
	RevokeRole(ctx context.Context, tenant, id, role string, who holdpoint.Who) error // not_allowed_now for the last tenant-admin is the engine's rule

	CreateKey(ctx context.Context, k holdpoint.Key, tokenHash string, who holdpoint.Who) error
	// KeyByHash finds a live key (not revoked, person not disabled) and its person, noting last use at most once a
	// minute; not_found otherwise.
	KeyByHash(ctx context.Context, tokenHash string) (holdpoint.Key, *holdpoint.Person, error)
	ListKeys(ctx context.Context, tenant string) ([]holdpoint.Key, error)
	RevokeKey(ctx context.Context, tenant, id string, who holdpoint.Who) error

	CreateSession(ctx context.Context, tenant, personID, tokenHash string, idle, absolute time.Duration, who holdpoint.Who) error
	// SessionByHash finds a live session and its person, sliding the idle limit at most once a minute.
	SessionByHash(ctx context.Context, tokenHash string) (holdpoint.Person, error)
	EndSession(ctx context.Context, tokenHash string) error
}

// Policies are the verbs of tenants and policies.
type Policies interface {
	// CreateTenant makes a tenant with its wrapped keys and its switches global and tenant (off, if missing). exists.
	CreateTenant(ctx context.Context, t Tenant, who holdpoint.Who) error
	TenantByName(ctx context.Context, tenant string) (Tenant, error)
	ListTenants(ctx context.Context) ([]Tenant, error)
	PutPolicy(ctx context.Context, p PolicyRow, who holdpoint.Who) error // storing the same again is no error
	PolicyByHash(ctx context.Context, tenant, hash string) (PolicyRow, error)
	ListPolicies(ctx context.Context, tenant string) ([]PolicyRow, error)
	// ActivatePolicy moves the tenant's active pointer from expected to hash; policy_moved (Detail "active") otherwise.
	ActivatePolicy(ctx context.Context, tenant, hash, expected string, who holdpoint.Who) error
}

// Tenant owns keys, policy and data. EffectKey and IndexKey are wrapped and never rotated.
type Tenant struct {
	Name         string    `json:"name"`
	EffectKey    []byte    `json:"-"`
	IndexKey     []byte    `json:"-"`
	ActivePolicy string    `json:"active_policy"`
	CreatedAt    time.Time `json:"created_at"`
}

// PolicyRow is one stored policy version.
type PolicyRow struct {
	Tenant    string            `json:"tenant"`
	Hash      string            `json:"hash"`
	Document  string            `json:"document"`
	Files     map[string]string `json:"files"`
	CreatedAt time.Time         `json:"created_at"`
	CreatedBy string            `json:"created_by"`
}

// Reads are the queries. They change nothing.
type Reads interface {
	// Record gives all that stands about one run, content sealed; not_found.
	Record(ctx context.Context, tenant, runID string) (Record, error)
	// Content gives one run with its sealed content and nothing that hangs on it: Run, RunKey, Payload, Initiator,
	// ResumeURL, Result and FailText of a Record; not_found.
	Content(ctx context.Context, tenant, runID string) (Record, error)
	// FindRuns lists runs by filter, newest first.
	FindRuns(ctx context.Context, f RunFilter) ([]holdpoint.Run, string, error)
	ApprovalByID(ctx context.Context, tenant, id string) (holdpoint.Approval, error)
	FindApprovals(ctx context.Context, tenant string, state holdpoint.ApprovalState, cursor string, limit int) ([]holdpoint.Approval, string, error)
	EffectByID(ctx context.Context, tenant, id string) (holdpoint.Effect, []holdpoint.Attempt, error)
	FindEffects(ctx context.Context, f EffectFilter) ([]holdpoint.Effect, string, error)
	Events(ctx context.Context, tenant, runID string) ([]holdpoint.Event, error)
	// AddEvents writes events that record a reading (content.read), which moves nothing.
	AddEvents(ctx context.Context, e []holdpoint.Event) error
	// FirstForTarget reports whether no other run has completed an effect of this type to this target.
	FirstForTarget(ctx context.Context, tenant, typ, targetIndex, exceptRun string) (bool, error)
	// Gauges gives the numbers that metrics show.
	Gauges(ctx context.Context) (Gauges, error)
}

// Record is one run with everything that hangs on it. Byte fields are sealed under the run key.
type Record struct {
	Run        holdpoint.Run
	RunKey     []byte // wrapped
	Payload    []byte
	Initiator  []byte
	ResumeURL  []byte
	Result     []byte
	FailText   []byte
	Drafts     []DraftRow
	Planned    []PlannedEffect // of all revisions
	Effects    []EffectRow
	Attempts   []holdpoint.Attempt
	Steps      []StepRow
	Approvals  []holdpoint.Approval
	Challenges []holdpoint.Challenge
	Decisions  []DecisionRow
	Messages   []holdpoint.MessageRecord
	Now        time.Time
}

// DraftRow is a draft with its sealed output.
type DraftRow struct {
	holdpoint.Draft
	Output    []byte
	SourceURL []byte
}

// EffectRow is an effect with its sealed target and payload.
type EffectRow struct {
	holdpoint.Effect
	Target  []byte
	Payload []byte
}

// StepRow is a step with its sealed result.
type StepRow struct {
	holdpoint.Step
	Result []byte
}

// DecisionRow is a decision with its sealed reason.
type DecisionRow struct {
	holdpoint.DecisionRecord
	ReasonText []byte
}

// RunFilter selects runs of one tenant; other zero fields select all.
type RunFilter struct {
	Tenant, KeyHMAC, Key, Workflow, Record string
	State                                  holdpoint.RunState
	Cursor                                 string
	Limit                                  int
}

// EffectFilter selects effects of one tenant; other zero fields select all.
type EffectFilter struct {
	Tenant, RunID string
	State         holdpoint.EffectState
	Held          bool
	Cursor        string
	Limit         int
}

// Gauges are counts for metrics.
type Gauges struct {
	Effects       map[holdpoint.EffectState]int64
	OldestPending time.Duration
	OldestUnknown time.Duration
	Switches      []holdpoint.Switch
	Holds         []ConnectorHold
	Approvals     int64 // pending
}
