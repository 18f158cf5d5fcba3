package engine

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
)

// pointerAge bounds how long a replica may use an active pointer that it has read: a policy activated on another
// replica is followed within it, and at once by a wake-up hint.
const pointerAge = time.Second

// loaded is a policy with its compiled contracts. Policies are immutable, so they are kept by hash.
type loaded struct {
	*policy.Policy
	contracts map[string]*payload.Contract // by workflow
}

type policies struct {
	store   store.Store
	reading singleflight.Group
	mu      sync.Mutex
	byHash  map[string]*loaded // tenant/hash
	heads   map[string]head
	longest longest
	moves   int // how often forget was called: a pointer that was read before a move is not kept after it
}

type head struct {
	hash string
	read time.Time
}

// longest is the longest exchange that any active policy allows, as old as the readings that it comes from may be.
type longest struct {
	timeout time.Duration
	read    time.Time
}

func newPolicies(s store.Store) *policies {
	return &policies{store: s, byHash: map[string]*loaded{}, heads: map[string]head{}}
}

// forget makes the next reading of every active pointer go to the store.
func (p *policies) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moves++
	p.longest = longest{}
	clear(p.heads)
}

// active gives the tenant's active policy; no_active_policy if there is none (deny by default).
func (p *policies) active(ctx context.Context, tenant string) (*loaded, error) {
	p.mu.Lock()
	h, ok := p.heads[tenant]
	moves := p.moves
	p.mu.Unlock()
	if !ok || time.Since(h.read) > pointerAge {
		begun := time.Now()
		t, err := p.store.TenantByName(ctx, tenant)
		if err != nil {
			return nil, err
		}
		h = head{t.ActivePolicy, begun}
		p.mu.Lock()
		if p.moves == moves {
			p.heads[tenant] = h
		}
		p.mu.Unlock()
	}
	return p.version(ctx, tenant, h.hash)
}

// version gives the stored policy with this hash; no_active_policy if it is "", the pointer of a tenant that has none.
// What can't be taken back (holding an effect, dropping a message) is judged by the pointer that the store gives together
// with the effect or message: one that this process read earlier may be older than what released it.
func (p *policies) version(ctx context.Context, tenant, hash string) (*loaded, error) {
	if hash == "" {
		return nil, holdpoint.Errorf(holdpoint.CodeNoPolicy, "no policy is active in tenant %s; activate one with holdpoint policy activate", tenant)
	}
	p.mu.Lock()
	l := p.byHash[tenant+"/"+hash]
	p.mu.Unlock()
	if l != nil {
		return l, nil
	}
	// Whoever asks while it is being read waits for the one reading, which ends with none of them.
	answer := p.reading.DoChan(tenant+"/"+hash, func() (any, error) { return p.read(context.WithoutCancel(ctx), tenant, hash) })
	select {
	case r := <-answer:
		l, _ = r.Val.(*loaded)
		return l, r.Err
	case <-ctx.Done():
		return nil, holdpoint.Errorf(holdpoint.CodeUnavailable, "the policy was not read in time; repeat the call")
	}
}

// read reads and compiles a stored policy, and keeps it.
func (p *policies) read(ctx context.Context, tenant, hash string) (*loaded, error) {
	row, err := p.store.PolicyByHash(ctx, tenant, hash)
	if err != nil {
		return nil, err
	}
	l, findings := load([]byte(row.Document), asBytes(row.Files))
	if l == nil {
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidPolicy, "the stored policy %.12s does not pass this version's check; activate one that does", hash).With("findings", findings)
	}
	p.mu.Lock()
	p.byHash[tenant+"/"+hash] = l
	p.mu.Unlock()
	return l, nil
}

// load parses a document and compiles its contracts; nil if a finding is an error.
func load(document []byte, files map[string][]byte) (*loaded, []policy.Finding) {
	p, findings := policy.Parse(document, files, policy.Options{CheckContract: func(name string, schema []byte) error {
		_, err := payload.CompileContract(name, schema)
		return err
	}})
	if p == nil {
		return nil, findings
	}
	l := &loaded{Policy: p, contracts: map[string]*payload.Contract{}}
	for name, w := range p.Workflows {
		c, err := payload.CompileContract(w.ContractFile, w.ContractSchema)
		if err != nil {
			return nil, append(findings, policy.Finding{Severity: "error", Code: "contract", Message: err.Error()})
		}
		l.contracts[name] = c
	}
	return l, findings
}

func asBytes(m map[string]string) map[string][]byte {
	out := make(map[string][]byte, len(m))
	for k, v := range m {
		out[k] = []byte(v)
	}
	return out
}

// workflow finds a workflow in a policy; unknown_workflow names those that exist.
func (l *loaded) workflow(name string) (*policy.Workflow, error) {
	w := l.Workflows[name]
	if w == nil {
		return nil, holdpoint.Errorf(holdpoint.CodeUnknownWorkflow, "the active policy has no workflow with this name; add it to the policy file and activate it")
	}
	return w, nil
}

// PolicyProposal is a policy document with the schema files that it names.
type PolicyProposal struct {
	Document string            `json:"document"`
	Files    map[string]string `json:"files"`
}

// StoredPolicy is the answer to a proposal. A proposal with an error finding is not stored and has no hash.
type StoredPolicy struct {
	Hash     string           `json:"hash"`
	Findings []policy.Finding `json:"findings"`
}

// CheckPolicy checks a proposal without storing it.
func (e *Engine) CheckPolicy(p PolicyProposal) StoredPolicy {
	l, findings := load([]byte(p.Document), asBytes(p.Files))
	if l == nil {
		return StoredPolicy{Findings: findings}
	}
	return StoredPolicy{Hash: l.Hash, Findings: findings}
}

// PutPolicy checks a proposal and stores it by hash; invalid_policy with Detail "findings" if it has errors. It
// activates nothing.
func (e *Engine) PutPolicy(ctx context.Context, a holdpoint.Actor, p PolicyProposal) (StoredPolicy, error) {
	if err := permit(a, holdpoint.ActionPolicyPropose); err != nil {
		return StoredPolicy{}, err
	}
	l, findings := load([]byte(p.Document), asBytes(p.Files))
	if l == nil {
		return StoredPolicy{}, holdpoint.Errorf(holdpoint.CodeInvalidPolicy, "correct the findings and propose the policy again").With("findings", findings)
	}
	if l.Tenant != a.Tenant {
		return StoredPolicy{}, holdpoint.Errorf(holdpoint.CodeInvalidPolicy, "the document says tenant: %s, and you work in %s; correct the document, or propose it there", l.Tenant, a.Tenant)
	}
	err := e.store.PutPolicy(ctx, store.PolicyRow{Tenant: a.Tenant, Hash: l.Hash, Document: p.Document, Files: p.Files, CreatedBy: who(a).ID}, who(a))
	return StoredPolicy{Hash: l.Hash, Findings: findings}, err
}

// ActivatePolicy moves the tenant's active pointer from expected to hash. It is refused if the policy would leave no
// policy-owner or no tenant-admin (R6.6). Whoever loses a role by it loses the authority of decisions whose effects
// have not begun.
func (e *Engine) ActivatePolicy(ctx context.Context, a holdpoint.Actor, hash, expected string) error {
	if err := permit(a, holdpoint.ActionPolicyActivate); err != nil {
		return err
	}
	next, err := e.policies.version(ctx, a.Tenant, hash)
	if err != nil {
		return err
	}
	people, err := e.store.ListPeople(ctx, a.Tenant)
	if err != nil {
		return err
	}
	for _, role := range []string{holdpoint.RolePolicyOwner, holdpoint.RoleTenantAdmin} {
		if len(holders(next, people, role)) == 0 {
			return holdpoint.Errorf(holdpoint.CodeInvalidPolicy, "nobody with an account would hold the role %s; name one under roles or grant it first", role)
		}
	}
	if err := e.store.ActivatePolicy(ctx, a.Tenant, hash, expected, who(a)); err != nil {
		return err
	}
	e.policies.forget()
	return nil
}

// PolicyHash gives the hash of the tenant's active policy, "" if none.
func (e *Engine) PolicyHash(ctx context.Context, tenant string) (string, error) {
	t, err := e.store.TenantByName(ctx, tenant)
	return t.ActivePolicy, err
}

// PolicyInfo is one stored policy version.
type PolicyInfo struct {
	store.PolicyRow
	Active bool `json:"active"`
}

// Policies lists the stored policies, the active one marked, without documents.
func (e *Engine) Policies(ctx context.Context, a holdpoint.Actor) ([]PolicyInfo, error) {
	if err := permit(a, holdpoint.ActionPolicyView); err != nil {
		return nil, err
	}
	active, err := e.PolicyHash(ctx, a.Tenant)
	if err != nil {
		return nil, err
	}
	rows, err := e.store.ListPolicies(ctx, a.Tenant)
	if err != nil {
		return nil, err
	}
	out := make([]PolicyInfo, len(rows))
	for i, r := range rows {
		r.Document, r.Files = "", nil
		out[i] = PolicyInfo{r, r.Hash == active}
	}
	return out, nil
}

// Policy gives one stored policy with its document; hash "active" names the active one.
func (e *Engine) Policy(ctx context.Context, a holdpoint.Actor, hash string) (PolicyInfo, error) {
	if err := permit(a, holdpoint.ActionPolicyView); err != nil {
		return PolicyInfo{}, err
	}
	active, err := e.PolicyHash(ctx, a.Tenant)
	if err != nil {
		return PolicyInfo{}, err
	}
	if hash == "active" {
		if hash = active; hash == "" {
			return PolicyInfo{}, holdpoint.Errorf(holdpoint.CodeNoPolicy, "no policy is active; activate one with holdpoint policy activate")
		}
	}
	row, err := e.store.PolicyByHash(ctx, a.Tenant, hash)
	return PolicyInfo{row, hash == active}, err
}

// FollowPolicies makes the next use of a policy read the active pointers again; the dispatch loops call it on a hint.
func (e *Engine) FollowPolicies() { e.policies.forget() }
