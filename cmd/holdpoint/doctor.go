package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint/app"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
)

// The results of a check.
const (
	resultOK   = "ok"
	resultWarn = "warn"
	resultFail = "fail"
)

// checkResult is one line of doctor. Do says what to do and is empty if nothing is to be done.
type checkResult struct {
	Check  string `json:"check"`
	Result string `json:"result"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"`
}

// examination collects results in the order of the checks.
type examination struct{ results []checkResult }

func (x *examination) ok(check, format string, args ...any) {
	x.results = append(x.results, checkResult{check, resultOK, fmt.Sprintf(format, args...), ""})
}

func (x *examination) warn(check, found, do string) {
	x.results = append(x.results, checkResult{check, resultWarn, found, do})
}

func (x *examination) fail(check, found, do string) {
	x.results = append(x.results, checkResult{check, resultFail, found, do})
}

// clockTolerance is how far this machine's clock may differ from the database's. No decision depends on it; people who
// compare logs do.
const clockTolerance = 2 * time.Second

func (p *program) doctorCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check configuration, clock, public URL, database, durability and the secret key",
		Long:  "Examines this instance's settings and its store, and says for each check what to do. Changes nothing. Ends with 1 if a check fails.",
		Example: examples("holdpoint doctor",
			"HOLDPOINT_DB=postgres://holdpoint@db/holdpoint holdpoint doctor --json"),
		Args: cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			x := &examination{}
			x.instance(ctx, p, cmd)
			err := p.answer(map[string]any{"checks": x.results}, func(w io.Writer) {
				rows := make([][]string, len(x.results))
				for i, r := range x.results {
					text := r.Found
					if r.Do != "" {
						text += ": " + r.Do
					}
					rows[i] = []string{r.Result, r.Check, text}
				}
				table(w, "RESULT | CHECK | FOUND", rows)
			})
			if err != nil {
				return err
			}
			if slices.ContainsFunc(x.results, func(r checkResult) bool { return r.Result == resultFail }) {
				return errFindings
			}
			return nil
		}),
	}
	storeFlags(c)
	setting(c.Flags(), "listen", "HOLDPOINT_LISTEN", "address that the server listens on")
	setting(c.Flags(), "public-url", "HOLDPOINT_PUBLIC_URL", "address under which people reach the instance")
	return c
}

// instance runs every check that can be run.
func (x *examination) instance(ctx context.Context, p *program, cmd *cobra.Command) {
	s, err := p.settings(cmd)
	if err != nil {
		x.fail("settings", "they cannot be read", err.Error())
		return
	}
	x.settings(p.environ, s)
	x.publicURL(s.PublicURL)
	x.secretKey(s.SecretKeyFile)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	x.database(ctx, s)
}

func (x *examination) settings(environ []string, s settings) {
	known := settingNames()
	var strange []string
	for _, e := range environ {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "HOLDPOINT_") && !slices.Contains(known, name) {
			strange = append(strange, name)
		}
	}
	slices.Sort(strange)
	if len(strange) > 0 {
		x.warn("settings", strings.Join(strange, ", ")+" means nothing", "correct the name or remove it; the settings are "+strings.Join(known, ", "))
	} else {
		x.ok("settings", "every HOLDPOINT_ variable is a setting")
	}
	switch {
	case s.actionsEnabled():
		x.ok("actions", "AI_ACTIONS_ENABLED is true: effects are sent where the switches are on")
	case s.Actions == "":
		x.warn("actions", "AI_ACTIONS_ENABLED is not set", "nothing is sent; set it to true where the server runs when it is to send")
	default:
		x.warn("actions", "AI_ACTIONS_ENABLED is set to something else than true", "nothing is sent; write exactly true when the server is to send")
	}
}

func (x *examination) publicURL(text string) {
	const check = "public URL"
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		x.fail(check, "HOLDPOINT_PUBLIC_URL is no absolute address", "write https:// and the name under which people reach this instance")
	case u.Scheme == "https":
		x.ok(check, "%s", u.Redacted())
	case isLoopback(u.Hostname()):
		x.warn(check, u.Redacted()+" is reachable from this machine only", "set HOLDPOINT_PUBLIC_URL to the https address before other people approve")
	default:
		x.fail(check, u.Redacted()+" is not https", "links and log-ins would travel in clear; put TLS in front and set HOLDPOINT_PUBLIC_URL to the https address")
	}
}

func isLoopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}

func (x *examination) secretKey(path string) {
	const check = "secret key"
	if _, err := readMasterKey(path); err != nil {
		x.fail(check, "it cannot be used", err.Error())
		return
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		x.fail(check, path+" cannot be looked at", "correct its permissions")
	case info.Mode().Perm()&0o077 != 0:
		x.fail(check, fmt.Sprintf("%s has mode %04o", path, info.Mode().Perm()), "other users may read it; run chmod 600 "+path)
	default:
		x.ok(check, "%s has 32 bytes and mode %04o; keep a copy of it elsewhere", path, info.Mode().Perm())
	}
}

// database examines the store through its own connections.
func (x *examination) database(ctx context.Context, s settings) {
	const check = "database"
	if path, ok := strings.CutPrefix(s.DB, "sqlite:"); ok {
		if _, err := os.Stat(path); err != nil {
			x.fail(check, path+" is not there", "run holdpoint init, or say with HOLDPOINT_DB where the store is")
			return
		}
	}
	watch := watchConnections()
	db, err := sqlstore.Open(ctx, sqlstore.Options{DSN: s.DB, Direct: s.DBDirect})
	if err != nil {
		x.fail(check, "it cannot be opened", "check HOLDPOINT_DB, and that the database runs and lets this user in; "+plain(err))
		return
	}
	defer func() { _ = db.Close() }() // nothing was written
	began := time.Now()
	now, err := db.Now(ctx)
	if err != nil {
		x.fail(check, "it does not answer", plain(err))
		return
	}
	took := time.Since(began)
	x.ok(check, "it answers, in %s", took.Round(time.Microsecond))
	x.clock(now.Sub(began.Add(took / 2)))
	x.durability(ctx, s, watch)
	x.tenants(ctx, db)
	x.sealed(ctx, s)
}

// sealed tries the secret key on what the store has sealed; what keeps the store from being opened is said elsewhere.
func (x *examination) sealed(ctx context.Context, s settings) {
	o, err := s.appOptions()
	if err != nil {
		return
	}
	o.PublicURL = "" // judged by its own check
	o.Listen = ""
	e, closer, err := app.OpenStore(ctx, o)
	if err != nil {
		return
	}
	defer func() { _ = closer.Close() }() // nothing was written
	if err := e.CheckMaster(ctx); err != nil {
		x.fail("sealed content", "it cannot be opened", ownWords(err))
		return
	}
	x.ok("sealed content", "the secret key opens it")
}

// plain gives an error without its code.
func plain(err error) string {
	text := err.Error()
	if _, rest, ok := strings.Cut(text, ": "); ok {
		return oneLine(rest)
	}
	return oneLine(text)
}

func (x *examination) clock(skew time.Duration) {
	if skew.Abs() > clockTolerance {
		x.warn("clock", fmt.Sprintf("this machine and the database differ by %s", skew.Round(time.Millisecond).Abs()),
			"set both clocks with NTP; Holdpoint decides by the database's, but people compare it with their own")
		return
	}
	x.ok("clock", "this machine and the database differ by %s", skew.Round(time.Millisecond).Abs())
}

// tenants checks each tenant's active policy.
func (x *examination) tenants(ctx context.Context, db *sqlstore.Store) {
	tenants, err := db.ListTenants(ctx)
	if err != nil {
		x.fail("schema", "the tenants cannot be read", "run holdpoint migrate; "+plain(err))
		return
	}
	if len(tenants) == 0 {
		x.warn("policy", "there is no tenant", "run holdpoint init, or holdpoint tenants create NAME")
	}
	for _, t := range tenants {
		check := "policy of " + t.Name
		if t.ActivePolicy == "" {
			x.warn(check, "none is active", "every claim is refused; run holdpoint policy activate")
			continue
		}
		row, err := db.PolicyByHash(ctx, t.Name, t.ActivePolicy)
		if err != nil {
			x.fail(check, "it cannot be read", plain(err))
			continue
		}
		files := map[string][]byte{}
		for name, body := range row.Files {
			files[name] = []byte(body)
		}
		active, _ := policy.Parse([]byte(row.Document), files, policy.Options{})
		if active == nil {
			x.fail(check, short(t.ActivePolicy)+" does not pass this version's check", "activate one that does")
			continue
		}
		x.ok(check, "%s, redelivery_window %s", short(t.ActivePolicy), brief(active.RedeliveryWindow))
		for name, c := range active.Connectors {
			if missing := c.MissingSecrets(app.Environment{}); len(missing) > 0 {
				x.warn("connector "+name, "it lacks "+strings.Join(missing, ", ")+" here", "set it where the server runs")
			}
		}
	}
}
