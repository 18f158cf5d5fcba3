package simtest

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector/httpcall"
	"github.com/holdpoint/holdpoint/internal/api"
	"github.com/holdpoint/holdpoint/internal/auth"
	"github.com/holdpoint/holdpoint/internal/console"
	"github.com/holdpoint/holdpoint/internal/dispatch"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
)

// process is one life of the program over the file: from its start to its death.
type process struct {
	*turnstile
	w          *world
	dead       atomic.Bool
	store      *sqlstore.Store
	engine     *engine.Engine
	dispatcher *dispatch.Dispatcher
	handler    http.Handler
}

var masterKey = []byte(strings.Repeat("k", 32))

// credentials answers every name with a secret.
type credentials struct{}

func (credentials) Env(string) (string, bool)   { return secret + "-credential", true }
func (credentials) File(string) ([]byte, error) { return []byte(secret + "-credential"), nil }

// start begins a life over the file as it stands.
func (w *world) start() {
	ctx := context.Background()
	p := &process{turnstile: &w.turnstile, w: w}
	var err error
	p.store, err = sqlstore.Open(ctx, sqlstore.Options{DSN: "sqlite:" + w.path, Now: w.now, Log: w.log})
	require.NoError(w, err)
	master, err := payload.NewMaster(masterKey)
	require.NoError(w, err)
	p.engine, err = engine.New(engine.Options{Store: &gate{p.store, p}, Master: master, Secrets: credentials{}, PublicURL: "http://127.0.0.1:8470",
		ActionsEnabled: true, Log: w.log, Rand: func() float64 { return 0.5 }})
	require.NoError(w, err)
	machine := api.New(p.engine, api.Options{Log: w.log})
	people := sync.OnceValue(func() http.Handler { return console.New(p.engine, console.Options{NonceKey: masterKey, Log: w.log}) })
	p.handler = httpserver.Wrap(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			machine.ServeHTTP(out, r)
		} else {
			people().ServeHTTP(out, r)
		}
	}), httpserver.Options{Log: w.log})
	p.dispatcher = dispatch.New(dispatch.Options{Engine: p.engine, Secrets: credentials{}, Wake: p.store.Wake(), Log: w.log, Poll: w.poll,
		Connect: func(c httpcall.Config) dispatch.Link { return &link{p: p, cfg: c} }})
	p.dispatcher.Start()
	w.proc = p
}

// bury ends what is left of a dead process: whoever still runs gets errors, and the file is let go.
func (p *process) bury() {
	p.dead.Store(true)
	for _, x := range p.list() {
		if x.p == p {
			p.let(x, isDead)
		}
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.dispatcher.Stop(gone) // its loops end; nobody waits for what had begun
	require.NoError(p.w, p.store.Close())
}

// template is a store with a tenant, its people, keys and policies, made once and copied for each seed.
type template struct {
	file     []byte
	tokens   map[string]string // by name
	sessions map[string]string
	people   map[string]string // id by name
	policies []string          // hashes of the editions
	// What each edition says, by its hash: the version of each connector, and who leads.
	connectors map[string]map[string]string
	leads      map[string][]string
}

// epoch is when a bubble's clock begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

var made = sync.OnceValues(makeTemplate)

func makeTemplate() (*template, error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp(memory(), "simtest")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "hp.db")
	s, err := sqlstore.Open(ctx, sqlstore.Options{DSN: "sqlite:" + path, Now: func() time.Time { return epoch }})
	if err != nil {
		return nil, err
	}
	t := &template{tokens: map[string]string{}, sessions: map[string]string{}, people: map[string]string{}, connectors: map[string]map[string]string{}, leads: map[string][]string{}}
	if err := t.fill(ctx, s); err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	t.file, err = os.ReadFile(path)
	return t, err
}

// fill makes what every seed begins with.
func (t *template) fill(ctx context.Context, s *sqlstore.Store) error {
	if err := s.Migrate(ctx); err != nil {
		return err
	}
	master, err := payload.NewMaster(masterKey)
	if err != nil {
		return err
	}
	e, err := engine.New(engine.Options{Store: s, Master: master, Secrets: credentials{}, PublicURL: "http://127.0.0.1:8470", ActionsEnabled: true})
	if err != nil {
		return err
	}
	local := engine.Local(tenant, "test")
	if err := e.CreateTenant(ctx, local, tenant); err != nil {
		return err
	}
	for name, scopes := range map[string][]holdpoint.Scope{"ana": {holdpoint.ScopeRead, holdpoint.ScopeDecide}, "ben": {holdpoint.ScopeRead, holdpoint.ScopeDecide},
		"cy": {holdpoint.ScopeRead, holdpoint.ScopeDecide}, "dora": {holdpoint.ScopeRead, holdpoint.ScopeDecide}, "eve": {holdpoint.ScopeRead, holdpoint.ScopeDecide},
		"ops": holdpoint.PersonScopes} {
		// No password: nobody logs in with one, and hashing takes longer than a seed.
		p := holdpoint.Person{ID: uuid.NewString(), Tenant: tenant, Email: name + "@acme.example"}
		if err := s.CreatePerson(ctx, p, holdpoint.Who{Kind: holdpoint.ActorLocal, ID: "test"}); err != nil {
			return err
		}
		k, err := e.CreateToken(ctx, local, p.Email, "test", scopes)
		if err != nil {
			return err
		}
		t.people[name], t.tokens[name] = p.ID, k.Key
		sessionToken := auth.Mint(auth.KindSession)
		t.sessions[name] = sessionToken.Token
		if err := s.CreateSession(ctx, tenant, p.ID, sessionToken.Hash, 10000*time.Hour, 10000*time.Hour, holdpoint.Who{Kind: holdpoint.ActorPerson, ID: p.Email}); err != nil {
			return err
		}
	}
	if err := s.GrantRole(ctx, tenant, t.people["dora"], "lead", holdpoint.Who{Kind: holdpoint.ActorLocal, ID: "test"}); err != nil {
		return err
	}
	k, err := e.CreateKey(ctx, local, "n8n", []holdpoint.Scope{holdpoint.ScopeWork, holdpoint.ScopeRead})
	if err != nil {
		return err
	}
	t.tokens["n8n"] = k.Key
	for _, x := range editions {
		p, err := e.PutPolicy(ctx, local, engine.PolicyProposal{Document: x.document, Files: map[string]string{"reply.json": x.schema}})
		if err != nil {
			return err
		}
		t.policies = append(t.policies, p.Hash)
		parsed, _ := policy.Parse([]byte(x.document), map[string][]byte{"reply.json": []byte(x.schema)}, policy.Options{})
		t.connectors[p.Hash] = map[string]string{}
		for name, c := range parsed.Connectors {
			t.connectors[p.Hash][name] = c.Version
		}
		for _, email := range parsed.Roles["lead"].Users {
			name, _, _ := strings.Cut(email, "@")
			t.leads[p.Hash] = append(t.leads[p.Hash], name)
		}
	}
	if err := e.ActivatePolicy(ctx, local, t.policies[0], ""); err != nil {
		return err
	}
	for name, life := range keyLife {
		version := t.connectors[t.policies[0]][name]
		if err := s.PutProof(ctx, store.Proof{Tenant: tenant, Connector: name, Version: version, KeyLife: life, ProvedAt: epoch, ExpiresAt: epoch.AddDate(1, 0, 0)}); err != nil {
			return err
		}
	}
	return nil
}

// keyLife is how long a provider that honours its key remembers it.
var keyLife = map[string]time.Duration{"pay": 24 * time.Hour, "book": time.Hour}

// memory is a directory without a disk below it, if there is one.
func memory() string {
	const shared = "/dev/shm"
	if os.Getenv("TMPDIR") == "" {
		if f, err := os.CreateTemp(shared, "simtest"); err == nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
			return shared
		}
	}
	return ""
}

// watchful is a log that looks for what must not be in it.
type watchful struct{ w *world }

func (l watchful) Write(b []byte) (int, error) {
	l.w.clean("the log", b)
	return len(b), nil
}

func newLog(w *world) *slog.Logger {
	return slog.New(slog.NewTextHandler(watchful{w}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
