// Package engine holds the use cases of Holdpoint, one file each: what happens between a request and a transaction.
// It keeps no state of its own besides what it depends on and caches of immutable rows, and it is the only production
// caller of the store's verbs.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/auth"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
)

// Options are what an engine depends on. Store, Master and PublicURL are needed; zero values of the others are usable.
type Options struct {
	Store          store.Store
	Master         *payload.Master
	Secrets        policy.Secrets // nil: no secret resolves, so no connector is ready
	PublicURL      string         // where people reach this instance, with its path if it has one; links are built from it
	ActionsEnabled bool           // AI_ACTIONS_ENABLED was exactly "true"
	Limits         payload.Limits
	Log            *slog.Logger   // nil discards
	Rand           func() float64 // jitter; nil: math/rand
	Passwords      *auth.Passwords
}

// Engine runs the use cases. It is safe for concurrent use.
type Engine struct {
	store     store.Store
	master    *payload.Master
	secrets   policy.Secrets
	public    *url.URL
	enabled   bool
	limits    payload.Limits
	log       *slog.Logger
	rand      func() float64
	passwords *auth.Passwords
	logins    *auth.Limiter
	claims    *coalescer
	policies  *policies
	keys      *tenantKeys
	leases    leaseSizes
}

// New makes an engine.
func New(o Options) (*Engine, error) {
	public, err := url.Parse(strings.TrimRight(o.PublicURL, "/"))
	if err != nil || public.Host == "" || (public.Scheme != "https" && public.Scheme != "http") {
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "HOLDPOINT_PUBLIC_URL must be an absolute http or https address")
	}
	if public.Scheme == "http" && !loopback(public.Hostname()) {
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "set HOLDPOINT_PUBLIC_URL to the https address under which people reach this server; outside this machine it must be https: approval links and log-ins travel over it")
	}
	e := &Engine{store: o.Store, master: o.Master, secrets: o.Secrets, public: public, enabled: o.ActionsEnabled, limits: o.Limits,
		log: o.Log, rand: o.Rand, passwords: o.Passwords, logins: auth.NewLimiter(10, 5, 10_000)}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.rand == nil {
		e.rand = rand.Float64
	}
	if e.passwords == nil {
		e.passwords = auth.NewPasswords()
	}
	if e.secrets == nil {
		e.secrets = noSecrets{}
	}
	e.claims = newCoalescer(o.Store.ClaimRuns)
	e.policies = newPolicies(o.Store)
	e.keys = &tenantKeys{store: o.Store, master: o.Master}
	return e, nil
}

type noSecrets struct{}

func (noSecrets) Env(string) (string, bool) { return "", false }
func (noSecrets) File(string) ([]byte, error) {
	return nil, errors.New("no secrets are configured")
}

// PublicURL gives the address of a page of this instance, path beginning with a slash.
func (e *Engine) PublicURL(path string) string { return e.public.String() + path }

// Secure reports whether people reach this instance over https.
func (e *Engine) Secure() bool { return e.public.Scheme == "https" }

// BasePath is the path under which this instance is reached, "" at the root.
func (e *Engine) BasePath() string { return e.public.Path }

// ActionsEnabled reports whether AI_ACTIONS_ENABLED was exactly "true".
func (e *Engine) ActionsEnabled() bool { return e.enabled }

// Ready fails if the store cannot be reached or a tenant's active policy lacks a secret on this replica.
func (e *Engine) Ready(ctx context.Context) error {
	if err := e.store.Ping(ctx); err != nil {
		return err
	}
	tenants, err := e.store.ListTenants(ctx)
	if err != nil {
		return err
	}
	for _, t := range tenants {
		p, err := e.policies.active(ctx, t.Name)
		if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNoPolicy}) {
			continue
		}
		if err != nil {
			return err
		}
		for name, c := range p.Connectors {
			if missing := c.MissingSecrets(e.secrets); len(missing) > 0 {
				return holdpoint.Errorf(holdpoint.CodeUnavailable, "connector %s of tenant %s lacks %s here; set it and restart", name, t.Name, strings.Join(missing, ", "))
			}
		}
	}
	return nil
}

// newID mints a UUIDv7.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// who turns an actor into what evidence records.
func who(a holdpoint.Actor) holdpoint.Who {
	id := a.ID
	if a.Kind == holdpoint.ActorPerson {
		id = a.Email
	}
	return holdpoint.Who{Kind: a.Kind, ID: id, How: a.How}
}

// system is the actor of sweepers and dispatcher.
func system(name string) holdpoint.Who { return holdpoint.Who{Kind: holdpoint.ActorSystem, ID: name} }

func permit(a holdpoint.Actor, action holdpoint.Action) error {
	return holdpoint.Permit(a, action, holdpoint.Object{Tenant: a.Tenant}).Err()
}

func loopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}

// tenantKeys unwraps each tenant's keys once.
type tenantKeys struct {
	store  store.Store
	master *payload.Master
	known  sync.Map // tenant → keyPair
}

type keyPair struct{ effect, index payload.Key }

func (k *tenantKeys) of(ctx context.Context, tenant string) (keyPair, error) {
	if p, ok := k.known.Load(tenant); ok {
		return p.(keyPair), nil
	}
	t, err := k.store.TenantByName(ctx, tenant)
	if err != nil {
		return keyPair{}, err
	}
	var p keyPair
	if p.effect, err = k.master.Unwrap("effect:"+tenant, t.EffectKey); err != nil {
		return p, err
	}
	if p.index, err = k.master.Unwrap("index:"+tenant, t.IndexKey); err != nil {
		return p, err
	}
	k.known.Store(tenant, p)
	return p, nil
}

// CheckMaster fails, with the name of the tenant, if the master key is not the one that the store was made with.
func (e *Engine) CheckMaster(ctx context.Context) error {
	tenants, err := e.store.ListTenants(ctx)
	if err != nil {
		return err
	}
	for _, t := range tenants {
		if _, err := e.keys.of(ctx, t.Name); errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeInternal}) {
			return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "the secret key does not open what tenant %s has sealed; restore the key that this store was made with", t.Name).Wrap(err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// CreateTenant makes a tenant with fresh keys; its switches start off.
func (e *Engine) CreateTenant(ctx context.Context, by holdpoint.Actor, name string) error {
	if by.Kind != holdpoint.ActorLocal {
		return holdpoint.Errorf(holdpoint.CodeForbidden, "tenants are made with the command holdpoint tenants create on the server")
	}
	if !validName(name) {
		return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "a tenant's name has 1 to 63 lower-case letters, digits and hyphens")
	}
	_, effect, err := e.master.NewKey("effect:" + name)
	if err != nil {
		return err
	}
	_, index, err := e.master.NewKey("index:" + name)
	if err != nil {
		return err
	}
	return e.store.CreateTenant(ctx, store.Tenant{Name: name, EffectKey: effect, IndexKey: index}, who(by))
}

// Tenants lists the tenants.
func (e *Engine) Tenants(ctx context.Context) ([]store.Tenant, error) {
	return e.store.ListTenants(ctx)
}

func validName(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// soleTenant reports whether this instance has one tenant.
func (e *Engine) soleTenant(ctx context.Context) bool {
	t, err := e.store.ListTenants(ctx)
	return err == nil && len(t) == 1
}

// box opens and seals the content of one run.
type box struct {
	key payload.Key
	run string
}

func (e *Engine) newBox(tenant, run string) (box, []byte, error) {
	k, wrapped, err := e.master.NewKey("run:" + tenant + ":" + run)
	return box{k, run}, wrapped, err
}

func (e *Engine) openBox(tenant, run string, wrapped []byte) (box, error) {
	k, err := e.master.Unwrap("run:"+tenant+":"+run, wrapped)
	return box{k, run}, err
}

func (b box) seal(label string, plain []byte) []byte { return b.key.Seal(b.run+"/"+label, plain) }

func (b box) sealText(label, plain string) []byte {
	if plain == "" {
		return nil
	}
	return b.seal(label, []byte(plain))
}

func (b box) open(label string, sealed []byte) ([]byte, error) {
	if sealed == nil {
		return nil, nil
	}
	return b.key.Open(b.run+"/"+label, sealed)
}
