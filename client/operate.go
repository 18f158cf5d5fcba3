package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/holdpoint/holdpoint"
)

// EffectQuery selects effects; empty fields select all. Held selects pending effects under any hold.
type EffectQuery struct {
	State         holdpoint.EffectState
	Held          bool
	RunID, Cursor string
	Limit         int // 1 to 500; 0 means 50
}

// EffectPage is one page of effects, newest first.
type EffectPage struct {
	Effects []holdpoint.Effect `json:"effects"`
	Next    string             `json:"next_cursor,omitempty"`
}

// Effects lists effects.
func (c *Client) Effects(ctx context.Context, q EffectQuery) (EffectPage, error) {
	held := ""
	if q.Held {
		held = "true"
	}
	return call[EffectPage](ctx, c, http.MethodGet, "/v1/effects", given("state", string(q.State), "held", held, "run_id", q.RunID,
		"cursor", q.Cursor, "limit", count(q.Limit)), nil)
}

// Effect gives one effect with its attempts.
func (c *Client) Effect(ctx context.Context, id string) (Effect, error) {
	return call[Effect](ctx, c, http.MethodGet, at("/v1/effects/", id), nil, nil)
}

// CancelEffect ends an effect that has not begun.
func (c *Client) CancelEffect(ctx context.Context, id, reason string) (holdpoint.Effect, error) {
	return c.effect(ctx, id, "/cancel", because{reason})
}

// Reconcile looks an unknown effect up at its provider now; it sends nothing.
func (c *Client) Reconcile(ctx context.Context, id string) (holdpoint.Effect, error) {
	return c.effect(ctx, id, "/reconcile", nil)
}

// Resolution is an operator's word about an unknown effect.
type Resolution struct {
	Verdict    holdpoint.Verdict `json:"verdict"`
	ProviderID string            `json:"provider_id,omitempty"`
	Reason     string            `json:"reason"`
}

// Resolve records what is true about an unknown effect.
func (c *Client) Resolve(ctx context.Context, id string, r Resolution) (holdpoint.Effect, error) {
	return c.effect(ctx, id, "/resolve", r)
}

func (c *Client) effect(ctx context.Context, id, verb string, body any) (holdpoint.Effect, error) {
	a, err := call[struct{ Effect holdpoint.Effect }](ctx, c, http.MethodPost, at("/v1/effects/", id, verb), nil, body)
	return a.Effect, err
}

// Switches is what the switches say and what is in flight.
type Switches struct {
	Enabled  bool                `json:"ai_actions_enabled"` // the server's environment; without it nothing is sent
	Switches []holdpoint.Switch  `json:"switches"`
	InFlight []holdpoint.Attempt `json:"in_flight"`
}

// Switches reads the switches.
func (c *Client) Switches(ctx context.Context) (Switches, error) {
	return call[Switches](ctx, c, http.MethodGet, "/v1/switches", nil, nil)
}

// Flipped is a switch as it stands, and what had begun before it was flipped.
type Flipped struct {
	holdpoint.Switch
	InFlight []holdpoint.Attempt `json:"in_flight"`
}

// SetSwitch turns one scope on or off: global, tenant, messages, workflow:NAME, connector:NAME or type:NAME.
func (c *Client) SetSwitch(ctx context.Context, scope string, on bool, reason string) (Flipped, error) {
	return call[Flipped](ctx, c, http.MethodPut, at("/v1/switches/", scope), nil, struct {
		On     bool   `json:"on"`
		Reason string `json:"reason"`
	}{on, reason})
}

// ConnectorHold keeps effects of a connector, or of one type through it, from being sent.
type ConnectorHold struct {
	Tenant    string         `json:"tenant"`
	Connector string         `json:"connector"`
	Type      string         `json:"type,omitempty"`
	Hold      holdpoint.Hold `json:"hold"`
	Detail    string         `json:"detail,omitempty"`
	Until     time.Time      `json:"until,omitzero"`
	Since     time.Time      `json:"since"`
}

// Connector is one connector of the active policy as it stands on the replica that answered.
type Connector struct {
	Name           string          `json:"name"`
	Kind           string          `json:"kind"`
	Version        string          `json:"version"`
	Provider       string          `json:"provider"`
	HasLookup      bool            `json:"has_lookup"`
	Idempotency    bool            `json:"idempotency_declared"`
	Proved         bool            `json:"proved"`
	MissingSecrets []string        `json:"missing_secrets,omitempty"`
	Holds          []ConnectorHold `json:"holds"`
}

// Connectors lists the connectors.
func (c *Client) Connectors(ctx context.Context) ([]Connector, error) {
	a, err := call[struct{ Connectors []Connector }](ctx, c, http.MethodGet, "/v1/connectors", nil, nil)
	return a.Connectors, err
}

// ReleaseConnector lifts a connector's holds and says how many effects may go on.
func (c *Client) ReleaseConnector(ctx context.Context, name string) (int, error) {
	a, err := call[struct{ Released int }](ctx, c, http.MethodPost, at("/v1/connectors/", name, "/release"), nil, nil)
	return a.Released, err
}

// Finding is one remark about a policy document.
type Finding struct {
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Severity string `json:"severity"`
	Code     string `json:"code"`
	Message  string `json:"message"`
}

// StoredPolicy is a policy's hash with the remarks about it.
type StoredPolicy struct {
	Hash     string    `json:"hash"`
	Findings []Finding `json:"findings"`
}

// PutPolicy checks a policy document with the schema files that it names and stores it by its hash; it activates nothing.
func (c *Client) PutPolicy(ctx context.Context, document string, files map[string]string) (StoredPolicy, error) {
	return call[StoredPolicy](ctx, c, http.MethodPost, "/v1/policies", nil, map[string]any{"document": document, "files": files})
}

// Policy is one stored policy; lists leave Document and Files empty.
type Policy struct {
	Tenant    string            `json:"tenant"`
	Hash      string            `json:"hash"`
	Document  string            `json:"document"`
	Files     map[string]string `json:"files"`
	CreatedAt time.Time         `json:"created_at"`
	CreatedBy string            `json:"created_by"`
	Active    bool              `json:"active"`
}

// Policies lists the stored policies.
func (c *Client) Policies(ctx context.Context) ([]Policy, error) {
	a, err := call[struct{ Policies []Policy }](ctx, c, http.MethodGet, "/v1/policies", nil, nil)
	return a.Policies, err
}

// Policy gives one stored policy with its document; hash "active" names the active one.
func (c *Client) Policy(ctx context.Context, hash string) (Policy, error) {
	return call[Policy](ctx, c, http.MethodGet, at("/v1/policies/", hash), nil, nil)
}

// ActivatePolicy makes a stored policy the active one if expectedActive ("" for none) is active now.
func (c *Client) ActivatePolicy(ctx context.Context, hash, expectedActive string) error {
	_, err := call[struct{}](ctx, c, http.MethodPost, at("/v1/policies/", hash, "/activate"), nil, map[string]string{"expected_active": expectedActive})
	return err
}

// User is an account with the roles that count now.
type User struct {
	holdpoint.Person
	Roles []string `json:"roles"`
}

// Users lists the accounts.
func (c *Client) Users(ctx context.Context) ([]User, error) {
	a, err := call[struct{ Users []User }](ctx, c, http.MethodGet, "/v1/users", nil, nil)
	return a.Users, err
}

// NewUser is a fresh account; Password is set if it was made up and must be changed at the first log-in.
type NewUser struct {
	ID       string `json:"id"`
	Email    string `json:"email"`
	Password string `json:"password,omitempty"`
}

// AddUser makes an account; password "" asks for one.
func (c *Client) AddUser(ctx context.Context, email, password string) (NewUser, error) {
	return call[NewUser](ctx, c, http.MethodPost, "/v1/users", nil, struct {
		Email    string `json:"email"`
		Password string `json:"password,omitempty"`
	}{email, password})
}

// DisableUser disables an account; its sessions end and its tokens are revoked.
func (c *Client) DisableUser(ctx context.Context, email string) error {
	return c.discard(ctx, http.MethodDelete, at("/v1/users/", email))
}

// EnableUser enables a disabled account again.
func (c *Client) EnableUser(ctx context.Context, email string) error {
	_, err := call[struct{}](ctx, c, http.MethodPost, at("/v1/users/", email, "/enable"), nil, nil)
	return err
}

// GrantRole grants a role beside what the policy says.
func (c *Client) GrantRole(ctx context.Context, email, role string) error {
	_, err := call[struct{}](ctx, c, http.MethodPost, at("/v1/users/", email, "/grants"), nil, map[string]string{"role": role})
	return err
}

// RevokeRole takes a granted role back.
func (c *Client) RevokeRole(ctx context.Context, email, role string) error {
	return c.discard(ctx, http.MethodDelete, at("/v1/users/", email, "/grants/", role))
}

// Keys lists machine keys and people's tokens, without secrets.
func (c *Client) Keys(ctx context.Context) ([]holdpoint.Key, error) {
	a, err := call[struct{ Keys []holdpoint.Key }](ctx, c, http.MethodGet, "/v1/keys", nil, nil)
	return a.Keys, err
}

// NewKey is a key with its secret, which is shown once.
type NewKey struct {
	ID  string `json:"id"`
	Key string `json:"key"`
}

// CreateKey mints a machine key.
func (c *Client) CreateKey(ctx context.Context, name string, scopes []holdpoint.Scope) (NewKey, error) {
	return call[NewKey](ctx, c, http.MethodPost, "/v1/keys", nil, newKey{name, scopes})
}

// CreateToken mints a token for the person whose token this is.
func (c *Client) CreateToken(ctx context.Context, name string, scopes []holdpoint.Scope) (NewKey, error) {
	return call[NewKey](ctx, c, http.MethodPost, "/v1/me/tokens", nil, newKey{name, scopes})
}

type newKey struct {
	Name   string            `json:"name"`
	Scopes []holdpoint.Scope `json:"scopes"`
}

// RevokeKey revokes a key or token at once.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	return c.discard(ctx, http.MethodDelete, at("/v1/keys/", id))
}

// Me is who the token belongs to and what it may do.
type Me struct {
	Kind      string            `json:"kind"` // machine or person
	ID        string            `json:"id"`
	Email     string            `json:"email,omitempty"`
	Tenant    string            `json:"tenant"`
	Roles     []string          `json:"roles"`
	Scopes    []holdpoint.Scope `json:"scopes"`
	Assurance string            `json:"assurance,omitempty"`
}

// Me says who the token belongs to.
func (c *Client) Me(ctx context.Context) (Me, error) {
	return call[Me](ctx, c, http.MethodGet, "/v1/me", nil, nil)
}

// Health fails with unavailable unless the process that answers lives; it says nothing about its store.
func (c *Client) Health(ctx context.Context) error {
	_, err := call[struct{}](ctx, c, http.MethodGet, "/healthz", nil, nil)
	return err
}

// OpenAPI gives the description of the HTTP API that the server speaks, an OpenAPI 3.1 document.
func (c *Client) OpenAPI(ctx context.Context) (json.RawMessage, error) {
	return call[json.RawMessage](ctx, c, http.MethodGet, "/openapi.json", nil, nil)
}

// Ready fails with unavailable unless the replica that answers can serve.
func (c *Client) Ready(ctx context.Context) error {
	_, err := call[struct{}](ctx, c, http.MethodGet, "/readyz", nil, nil)
	return err
}
