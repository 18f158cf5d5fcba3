//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/connector/mirror"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

// The people of a world. Ana and Ben approve; Otto holds every reserved role.
const (
	ana  = "ana@acme.example"
	ben  = "ben@acme.example"
	otto = "otto@acme.example"
	jane = "jane@customer.example" // whom the effects are about

	anasPassword = "correct horse battery staple"
)

// world is one instance of Holdpoint: store, secret key, policy, people, and a provider that counts. Servers are started
// on top of it.
type world struct {
	t        testing.TB
	dir      string
	env      []string // settings of every process
	program  string   // what executes commands; "" is the binary under test
	db       *sql.DB  // what query reads from; nil opens it each time, so that nobody holds it while a server dies
	provider *mirror.Provider

	key                              string // machine key with scopes work and read
	bensPassword                     string // the one that he was given
	anasToken, bensToken, ottosToken string
}

// newWorld makes an instance as an operator would, with the commands.
func newWorld(t testing.TB, p place, document string) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	switch p {
	case sqlite:
		w.env = append(w.env, "HOLDPOINT_DB=sqlite:"+filepath.Join(w.dir, "holdpoint.db"))
	case postgres:
		dsn := testenv.Postgres(t)
		w.env = append(w.env, "HOLDPOINT_DB="+dsn, "HOLDPOINT_DB_DIRECT="+dsn)
	case pooled:
		dsn := testenv.Postgres(t)
		w.env = append(w.env, "HOLDPOINT_DB="+testenv.PgBouncer(t, dsn), "HOLDPOINT_DB_DIRECT="+dsn)
	}
	var err error
	w.provider, err = mirror.Start("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.provider.Close()) })

	var made struct {
		APIKey string `json:"api_key"`
	}
	w.answer(&made, "", "init", "--admin", otto)
	w.key = made.APIKey
	w.answer(nil, anasPassword+"\n", "users", "add", ana, "--local", "--password-stdin")
	var added struct{ Password string }
	w.answer(&added, "", "users", "add", ben, "--local")
	w.bensPassword = added.Password
	w.activate(document)
	w.anasToken = w.token(ana, "read,content,decide")
	w.bensToken = w.token(ben, "read,content,decide")
	w.ottosToken = w.token(otto, "read,content,operate,switch,admin")
	return w
}

// activate puts a policy in force.
func (w *world) activate(document string) {
	w.t.Helper()
	document = strings.ReplaceAll(document, "PROVIDER", w.provider.URL())
	require.NoError(w.t, os.WriteFile(filepath.Join(w.dir, "holdpoint.yaml"), []byte(document), 0o644))
	require.NoError(w.t, os.WriteFile(filepath.Join(w.dir, "draft.json"), []byte(contract), 0o644))
	w.answer(nil, "", "policy", "activate", "--local")
}

func (w *world) token(person, scopes string) string {
	w.t.Helper()
	var made struct {
		Key string `json:"key"`
	}
	w.answer(&made, "", "users", "token", person, "--scopes", scopes, "--local")
	return made.Key
}

// result is how a command ended.
type result struct {
	code           int
	stdout, stderr string
}

// execute runs one command in the world's directory, with settings beside the world's own.
func (w *world) execute(env []string, stdin string, args ...string) result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	program := w.program
	if program == "" {
		program = binary(w.t)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = w.dir
	cmd.Env = append(w.environ(), env...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(w.t, err, "holdpoint %s", strings.Join(args, " "))
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// environ is nothing but what the world sets: no setting of the machine reaches a test.
func (w *world) environ() []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "HOLDPOINT_EGRESS_ALLOW=127.0.0.0/8"}, w.env...)
}

// answer executes a command that must succeed, and reads its answer.
func (w *world) answer(into any, stdin string, args ...string) {
	w.t.Helper()
	r := w.execute(nil, stdin, append(args, "--json")...)
	require.Zero(w.t, r.code, "holdpoint %s: %s", strings.Join(args, " "), r.stderr)
	if into != nil {
		require.NoError(w.t, json.Unmarshal([]byte(r.stdout), into), r.stdout)
	}
}

// rest is what every policy of these tests has: who may what, and connectors to the provider of the world.
const rest = `version: 1
redelivery_window: 30d
roles:
  lead: {users: [` + ana + `]}
connectors:
  mail:
    kind: http
    method: POST
    url: "PROVIDER/mail"
    body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}
    idempotency: {header: Idempotency-Key, lifetime: 24h}
    success: [200]
    provider_id: /id
    timeout: 2s
  crm:
    kind: http
    method: POST
    url: "PROVIDER/crm"
    body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}
    success: [200]
    provider_id: /id
    timeout: 2s
`

// governed has one workflow for each connector, which share nothing else.
const governed = rest + `workflows:
  ticket:
    contract: draft.json
    repairs: 2
    fingerprint: {ignore: [/delivered_at]}
    effects:
      reply: {type: email.reply, connector: mail, consequence: customer_message, target: "${event.customer}", payload: {text: "${draft.reply}"}}
    gate: {roles: [lead]}
  note:
    contract: draft.json
    fingerprint: {ignore: [/delivered_at]}
    effects:
      note: {type: crm.note, connector: crm, consequence: crm_change, target: "${event.customer}", payload: {text: "${draft.reply}"}}
    gate: {roles: [lead]}
`

// contract is what a draft must be.
const contract = `{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "required": ["reply"], "additionalProperties": false,
 "properties": {"reply": {"type": "string", "minLength": 1, "maxLength": 4000}}}`
