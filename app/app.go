// Package app puts Holdpoint together: one store, one engine, the listeners and the loops. It is also how a Go program
// embeds Holdpoint.
package app

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/api"
	"github.com/holdpoint/holdpoint/internal/console"
	"github.com/holdpoint/holdpoint/internal/dispatch"
	"github.com/holdpoint/holdpoint/internal/egress"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/killpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
)

// The roles that a process can take.
const (
	RoleAPI      = "api"
	RoleDispatch = "dispatch"
)

// Options are the settings of one process; zero values are the defaults named.
type Options struct {
	DB             string // sqlite:PATH or postgres://…; sqlite:holdpoint.db
	DBDirect       string // PostgreSQL connection that does not pass a transaction pooler
	Listen         string // 127.0.0.1:8470
	PublicURL      string // http:// and Listen
	MasterKey      []byte // 32 bytes
	ActionsEnabled bool   // AI_ACTIONS_ENABLED was exactly "true"
	EgressAllow    []netip.Prefix
	Roles          []string // nil: all
	Secrets        policy.Secrets
	Log            *slog.Logger
	Dispatch       dispatch.Options // windows of the loops; Engine, Wake and the like are filled in
}

// App is one process of Holdpoint.
type App struct {
	o          Options
	store      store.Store
	engine     *engine.Engine
	listener   net.Listener
	server     *http.Server
	dispatcher *dispatch.Dispatcher
	lock       io.Closer
	served     chan error
}

// New opens and migrates the store and takes the lock of a SQLite store, which one process serves. Start makes it work.
func New(ctx context.Context, o Options) (*App, error) {
	o = o.withDefaults()
	for _, r := range o.Roles {
		if r != RoleAPI && r != RoleDispatch {
			return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "a role is api or dispatch")
		}
	}
	a := &App{o: o, served: make(chan error, 1)}
	var err error
	if a.lock, err = lockStore(o.DB); err != nil {
		return nil, err
	}
	s, e, err := open(ctx, o, true)
	if err != nil {
		return nil, errors.Join(err, a.lock.Close())
	}
	a.store, a.engine = s, e
	if a.has(RoleDispatch) {
		d := o.Dispatch
		d.Engine, d.Secrets, d.Guard, d.Wake, d.Log, d.Reach = e, o.Secrets, &egress.Guard{Allow: o.EgressAllow}, s.Wake(), o.Log, killpoint.Reach
		a.dispatcher = dispatch.New(d)
	}
	return a, nil
}

func (o Options) withDefaults() Options {
	if o.DB == "" {
		o.DB = "sqlite:holdpoint.db"
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:8470"
	}
	if o.PublicURL == "" {
		o.PublicURL = "http://" + o.Listen
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Secrets == nil {
		o.Secrets = Environment{}
	}
	o.Secrets = withoutOwn{o.Secrets, o.MasterKey}
	if o.Roles == nil {
		o.Roles = []string{RoleAPI, RoleDispatch}
	}
	return o
}

func (a *App) has(role string) bool { return slices.Contains(a.o.Roles, role) }

// open opens a store, migrates it or asks it to be current, and makes an engine over it.
func open(ctx context.Context, o Options, migrate bool) (store.Store, *engine.Engine, error) {
	master, err := payload.NewMaster(o.MasterKey)
	if err != nil {
		return nil, nil, err
	}
	s, err := sqlstore.Open(ctx, sqlstore.Options{DSN: o.DB, Direct: o.DBDirect, Log: o.Log})
	if err != nil {
		return nil, nil, err
	}
	prepare := s.Current
	if migrate {
		prepare = s.Migrate
	}
	if err := prepare(ctx); err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	e, err := engine.New(engine.Options{Store: s, Master: master, Secrets: o.Secrets, PublicURL: o.PublicURL, ActionsEnabled: o.ActionsEnabled, Log: o.Log})
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, e, nil
}

// OpenStore opens a store for a local command, which may run beside a server and therefore never migrates.
func OpenStore(ctx context.Context, o Options) (*engine.Engine, io.Closer, error) {
	s, e, err := open(ctx, o.withDefaults(), false)
	return e, s, err
}

// Start listens and begins the loops. It returns when requests are answered.
func (a *App) Start() error {
	if a.has(RoleAPI) {
		l, err := net.Listen("tcp", a.o.Listen)
		if err != nil {
			return holdpoint.Errorf(holdpoint.CodeUnavailable, "HOLDPOINT_LISTEN %s cannot be used; is another server running?", a.o.Listen).Wrap(err)
		}
		nonces, err := hkdf.Key(sha256.New, a.o.MasterKey, nil, "holdpoint nonces", 32)
		if err != nil {
			return err
		}
		a.listener = l
		a.server = httpserver.NewServer(httpserver.Wrap(a.handler(nonces), httpserver.Options{Log: a.o.Log, Secure: a.engine.Secure()}), a.o.Log)
		go func() { a.served <- a.server.Serve(l) }()
	}
	if a.dispatcher != nil {
		a.dispatcher.Start()
	}
	return nil
}

// handler sends the machine surface to the API and everything else to the pages for people.
func (a *App) handler(nonces []byte) http.Handler {
	machine := api.New(a.engine, api.Options{Log: a.o.Log})
	people := console.New(a.engine, console.Options{NonceKey: nonces, Log: a.o.Log})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p := r.URL.Path; {
		case strings.HasPrefix(p, "/v1/"), p == "/openapi.json", p == "/healthz", p == "/readyz":
			machine.ServeHTTP(w, r)
		case p == "/" && r.Method == http.MethodGet:
			http.Redirect(w, r, a.engine.PublicURL("/console"), http.StatusSeeOther)
		default:
			people.ServeHTTP(w, r)
		}
	})
}

// Addr is the address that the server listens on.
func (a *App) Addr() string {
	if a.listener == nil {
		return ""
	}
	return a.listener.Addr().String()
}

// Engine gives the use cases, for programs that embed Holdpoint.
func (a *App) Engine() *engine.Engine { return a.engine }

// Err receives the error that ended the listener, if one did.
func (a *App) Err() <-chan error { return a.served }

// Stop stops taking requests, lets what has begun end, and closes the store; at most until ctx ends.
func (a *App) Stop(ctx context.Context) error {
	var errs []error
	if a.server != nil {
		errs = append(errs, a.server.Shutdown(ctx))
	}
	if a.dispatcher != nil {
		errs = append(errs, a.dispatcher.Stop(ctx))
	}
	errs = append(errs, a.store.Close(), a.lock.Close())
	return errors.Join(errs...)
}

// stopTime is how long a graceful stop may take.
const stopTime = 30 * time.Second

// Run starts the process and stops it when ctx ends.
func (a *App) Run(ctx context.Context) error {
	if err := a.Start(); err != nil {
		return err
	}
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-a.served:
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	return errors.Join(failed, a.Stop(ctx))
}
