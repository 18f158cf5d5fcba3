package holdpoint

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Operation is the second form of an idempotency key: the parts of a business operation (R1.1).
type Operation struct {
	Source   string `json:"source"`
	Record   string `json:"record"`
	Action   string `json:"action"`
	Revision string `json:"revision,omitempty"`
}

// Lease is bounded ownership of a run. Version is the fencing number: every work call names owner and version.
type Lease struct {
	Owner     string    `json:"owner"`
	Version   int64     `json:"version"`
	ExpiresAt time.Time `json:"expires_at"`
	CapAt     time.Time `json:"cap_at"`
}

// Run is the durable record of one idempotency key, without content.
type Run struct {
	ID              string       `json:"id"`
	Tenant          string       `json:"tenant"`
	Workflow        string       `json:"workflow"`
	Scope           string       `json:"scope"`
	Key             string       `json:"key"`
	KeyFlag         string       `json:"key_flag,omitempty"` // why the key looks weak; "" if it does not
	Operation       *Operation   `json:"operation,omitempty"`
	State           RunState     `json:"state"`
	Reason          Reason       `json:"reason"`
	FailureClass    FailureClass `json:"failure_class,omitempty"`
	Version         int64        `json:"version"`
	Fingerprint     string       `json:"fingerprint"`
	FingerprintRule string       `json:"fingerprint_rule"`
	Ignore          []string     `json:"-"` // the run's own fingerprint rule: JSON Pointers
	PolicyHash      string       `json:"policy_version"`
	LeaseOwner      string       `json:"-"`
	LeaseExpiresAt  *time.Time   `json:"lease_expires_at,omitempty"`
	LeaseCapAt      *time.Time   `json:"-"`
	ClaimedAt       *time.Time   `json:"claimed_at,omitempty"`
	ExecutionID     string       `json:"execution_id,omitempty"`
	TriggerSource   string       `json:"trigger_source,omitempty"`
	WorkflowVersion string       `json:"workflow_version,omitempty"`
	DeliveryID      string       `json:"delivery_id,omitempty"`
	Attempts        int          `json:"attempts"` // claims in this round
	AttemptLimit    int          `json:"attempt_limit"`
	Round           int          `json:"round"`
	Steals          int          `json:"steals"`
	StealCap        int          `json:"-"`
	Duplicates      int          `json:"duplicates"`
	Mismatches      int          `json:"mismatches"`
	RetryAt         *time.Time   `json:"retry_at,omitempty"`
	BudgetUntil     *time.Time   `json:"budget_until,omitempty"`
	Revision        int          `json:"draft_revision"` // 0: no accepted draft yet
	Repairs         int          `json:"repairs_used"`
	Replaces        string       `json:"replaces,omitempty"`
	ReplacedBy      string       `json:"replaced_by,omitempty"`
	LastCall        string       `json:"-"` // hash of the last state-changing work call, so that a repeated one answers what stands
	CreatedAt       time.Time    `json:"created_at"`
	UpdatedAt       time.Time    `json:"updated_at"`
	EndedAt         *time.Time   `json:"ended_at,omitempty"`
}

// Step is a durable checkpoint inside a run, without its result.
type Step struct {
	RunID        string       `json:"-"`
	Name         string       `json:"name"`
	State        StepState    `json:"state"`
	SideEffect   bool         `json:"side_effect"` // the workflow's own write: not governed by the outbox
	InputHash    string       `json:"input_hash,omitempty"`
	ResultHash   string       `json:"result_hash,omitempty"`
	FailureClass FailureClass `json:"failure_class,omitempty"`
	LeaseVersion int64        `json:"-"` // the run version under which it was begun
	Begins       int          `json:"begins"`
	UpdatedAt    time.Time    `json:"updated_at"`
}

// Model says which model made a draft. It is evidence, not content.
type Model struct {
	EndpointClass string `json:"endpoint_class,omitempty"`
	Name          string `json:"name,omitempty"`
	Revision      string `json:"revision,omitempty"`
	FinishReason  string `json:"finish_reason,omitempty"`
	PromptVersion string `json:"prompt_version,omitempty"`
}

// Draft is the model's output once it has passed its contract, without the output itself.
type Draft struct {
	RunID      string    `json:"-"`
	Revision   int       `json:"revision"`
	OutputHash string    `json:"output_hash"`
	Model      Model     `json:"model"`
	PolicyHash string    `json:"policy_version"`
	CreatedAt  time.Time `json:"created_at"`
}

// Approval is the question put to people about one digest.
type Approval struct {
	ID            string        `json:"id"`
	Tenant        string        `json:"tenant"`
	RunID         string        `json:"run_id"`
	Workflow      string        `json:"workflow"`
	Revision      int           `json:"draft_revision"`
	Digest        string        `json:"digest"`
	PolicyHash    string        `json:"policy_version"`
	State         ApprovalState `json:"state"`
	Kind          string        `json:"kind"` // draft or review (reject and send back only)
	Why           string        `json:"why"`  // why it stopped: gate, refusal, soft_failure, no_effect
	Roles         []string      `json:"roles"`
	Quorum        int           `json:"quorum"`
	Assurance     string        `json:"assurance"`
	Allowed       []Decision    `json:"allowed"`
	Version       int64         `json:"version"`
	ExecuteWithin Duration      `json:"execute_within"`
	CreatedAt     time.Time     `json:"created_at"`
	ApproveBy     time.Time     `json:"approve_by"`
	ExecuteBy     *time.Time    `json:"execute_by,omitempty"`
	DecidedAt     *time.Time    `json:"decided_at,omitempty"`
}

// Challenge is one person's way in to one approval.
type Challenge struct {
	ID         string     `json:"id"`
	Tenant     string     `json:"-"`
	ApprovalID string     `json:"approval_id"`
	Email      string     `json:"email"`
	Channel    string     `json:"channel"`
	ExpiresAt  time.Time  `json:"expires_at"`
	OpenedAt   *time.Time `json:"opened_at,omitempty"`
	UsedAt     *time.Time `json:"used_at,omitempty"`
	RevokedAt  *time.Time `json:"revoked_at,omitempty"`
}

// DecisionRecord is what one named person answered.
type DecisionRecord struct {
	ID          string    `json:"id"`
	ApprovalID  string    `json:"approval_id"`
	Digest      string    `json:"digest"`
	PersonID    string    `json:"person_id"`
	Email       string    `json:"email"`
	Decision    Decision  `json:"decision"`
	Assurance   string    `json:"assurance"`
	How         string    `json:"how"` // session, token or link
	ChallengeID string    `json:"challenge_id,omitempty"`
	CreatedAt   time.Time `json:"created_at"`
}

// Reversible states how an effect can be undone, as policy declares it.
type Reversible struct {
	By     string   `json:"by"`
	Within Duration `json:"within"`
}

// EffectSpec is the unchanging half of an effect: what policy rendered, without target and payload.
type EffectSpec struct {
	ID               string      `json:"id"`
	RunID            string      `json:"run_id"`
	Workflow         string      `json:"workflow"`
	Revision         int         `json:"draft_revision"`
	Order            int         `json:"order"`
	Slot             string      `json:"slot"`
	Type             string      `json:"type"`
	Connector        string      `json:"connector"`
	ConnectorVersion string      `json:"connector_version"`
	Provider         string      `json:"provider"` // scheme and host, the unit of fairness and throttling
	Consequence      string      `json:"consequence"`
	TargetIndex      string      `json:"-"` // HMAC of the target
	PayloadHash      string      `json:"payload_hash"`
	ProviderKey      string      `json:"provider_key"`
	Reference        string      `json:"reference"`
	After            []string    `json:"after,omitempty"`
	Reversible       *Reversible `json:"reversible,omitempty"`
}

// Effect is one intended external write: a row of the outbox, without target and payload.
type Effect struct {
	EffectSpec
	Tenant            string       `json:"tenant"`
	ApprovalID        string       `json:"approval_id"`
	State             EffectState  `json:"state"`
	Hold              Hold         `json:"hold"`
	Reason            string       `json:"reason,omitempty"` // why it ended or waits: predecessor, cancelled, withdrawn, budget, abandoned, …
	PossiblyCommitted bool         `json:"possibly_committed"`
	FailureClass      FailureClass `json:"failure_class,omitempty"`
	Version           int64        `json:"version"`
	Attempts          int          `json:"attempts"`
	Spent             int          `json:"attempts_spent"` // attempts that count against the budget
	FirstAttemptAt    *time.Time   `json:"first_attempt_at,omitempty"`
	NextAttemptAt     *time.Time   `json:"next_attempt_at,omitempty"`
	ExecuteBy         *time.Time   `json:"execute_by,omitempty"`
	ProviderID        string       `json:"provider_id,omitempty"`
	WireHash          string       `json:"wire_hash,omitempty"` // of the first attempt; a repetition must match it
	SendBefore        *time.Time   `json:"send_before,omitempty"`
	Lookups           int          `json:"lookups"`
	AbsentReads       int          `json:"absent_reads"`
	AbsentResends     int          `json:"absent_resends"` // times an absence was proved and a new send allowed
	NextLookupAt      *time.Time   `json:"next_lookup_at,omitempty"`
	LeaseOwner        string       `json:"-"`
	LeaseExpiresAt    *time.Time   `json:"-"`
	CreatedAt         time.Time    `json:"created_at,omitzero"`
	UpdatedAt         time.Time    `json:"updated_at,omitzero"`
}

// Attempt is one request on the wire for one effect. SettledAt is nil while its end is not recorded.
type Attempt struct {
	ID         string       `json:"id"`
	EffectID   string       `json:"effect_id"`
	RunID      string       `json:"run_id"`
	Number     int          `json:"number"`
	BegunAt    time.Time    `json:"begun_at"`
	SendBefore time.Time    `json:"send_before"`
	WireHash   string       `json:"wire_hash"`
	Result     Result       `json:"result,omitempty"`
	Phase      Phase        `json:"phase,omitempty"`
	Class      FailureClass `json:"class,omitempty"`
	Status     int          `json:"status,omitempty"`
	ProviderID string       `json:"provider_id,omitempty"`
	Detail     string       `json:"detail,omitempty"`
	SettledAt  *time.Time   `json:"settled_at,omitempty"`
}

// Who is the actor of an event: a kind (machine, person, local, system), an id and how it was authenticated.
type Who struct {
	Kind string `json:"kind"`
	ID   string `json:"id,omitempty"`
	How  string `json:"how,omitempty"`
}

// Event is one line of evidence. Data holds hashes, ids, codes and counts, never content. RunID is "" for an event of
// the tenant; Seq counts without gaps inside a run (or inside the tenant's own events).
type Event struct {
	ID     string         `json:"id"`
	Tenant string         `json:"tenant"`
	RunID  string         `json:"run_id,omitempty"`
	Seq    int64          `json:"run_seq"`
	Type   string         `json:"type"`
	At     time.Time      `json:"at"`
	Who    Who            `json:"actor"`
	Data   map[string]any `json:"data,omitempty"`
}

// Switch is one scope of the kill switch.
type Switch struct {
	Tenant    string    `json:"tenant,omitempty"` // "" for global
	Scope     string    `json:"scope"`
	On        bool      `json:"on"`
	ChangedBy string    `json:"changed_by,omitempty"`
	ChangedAt time.Time `json:"changed_at"`
}

// Person is a named human of a tenant.
type Person struct {
	ID           string    `json:"id"`
	Tenant       string    `json:"tenant"`
	Email        string    `json:"email"`
	Password     string    `json:"-"` // PHC string
	MustChange   bool      `json:"must_change_password"`
	Disabled     bool      `json:"disabled"`
	Language     string    `json:"language,omitempty"`
	CreatedAt    time.Time `json:"created_at"`
	GrantedRoles []string  `json:"granted_roles"` // grants in the store; policy roles come on top
}

// Key is a machine key or a person's token, without the secret.
type Key struct {
	ID         string     `json:"id"`
	Tenant     string     `json:"tenant"`
	Kind       string     `json:"kind"` // machine or person
	Name       string     `json:"name"`
	PersonID   string     `json:"person_id,omitempty"`
	Scopes     []Scope    `json:"scopes"`
	CreatedAt  time.Time  `json:"created_at"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
	RevokedAt  *time.Time `json:"revoked_at,omitempty"`
}

// MessageRecord is one message of the message lane, without its content.
type MessageRecord struct {
	ID          string     `json:"id"`
	Tenant      string     `json:"tenant"`
	RunID       string     `json:"run_id,omitempty"`
	ApprovalID  string     `json:"approval_id,omitempty"`
	ChallengeID string     `json:"challenge_id,omitempty"`
	Type        string     `json:"type"`
	Channel     string     `json:"channel"`
	Email       string     `json:"-"`
	State       string     `json:"state"` // pending, delivered, dropped, failed
	Attempts    int        `json:"attempts"`
	Detail      string     `json:"detail,omitempty"`
	CreatedAt   time.Time  `json:"created_at"`
	DeliveredAt *time.Time `json:"delivered_at,omitempty"`
}

// Duration is a time.Duration that writes Go style text in JSON ("90s") and also reads whole days ("30d", "1d12h").
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	text, days := string(b), time.Duration(0)
	if n, rest, ok := strings.Cut(text, "d"); ok {
		whole, err := strconv.ParseUint(n, 10, 16)
		if err != nil {
			return fmt.Errorf("%q is not a duration; write for example 90s, 5m or 30d", text)
		}
		if days, text = time.Duration(whole)*24*time.Hour, rest; text == "" {
			text = "0s"
		}
	}
	v, err := time.ParseDuration(text)
	*d = Duration(days + v)
	return err
}
