package testenv_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/smtp"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/testenv"
)

func connect(t *testing.T, dsn string, mode pgx.QueryExecMode) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	config.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func value(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var v string
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&v))
	return v
}

func requireLoopback(t *testing.T, rawURL string) {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", u.Hostname())
}

func TestPostgresDatabasesAreFreshAndDurable(t *testing.T) {
	one, two := testenv.Postgres(t), testenv.Postgres(t)
	require.NotEqual(t, one, two)
	requireLoopback(t, one)

	a, b := connect(t, one, pgx.QueryExecModeExec), connect(t, two, pgx.QueryExecModeExec)
	_, err := a.Exec(t.Context(), "CREATE TABLE only_here (n int)")
	require.NoError(t, err)
	require.Equal(t, "0", value(t, b, "SELECT count(*)::text FROM pg_class WHERE relname = 'only_here'"))
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		require.Equal(t, "on", value(t, a, "SHOW "+setting), setting)
	}
}

func TestPostgresDatabaseIsDroppedWithOpenConnections(t *testing.T) {
	var dsn string
	t.Run("use", func(t *testing.T) {
		dsn = testenv.Postgres(t)
		conn, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		require.Equal(t, "1", value(t, conn, "SELECT '1'")) // left open on purpose
	})
	_, err := pgx.Connect(t.Context(), dsn)
	require.ErrorContains(t, err, "3D000", "the database must not exist any more")
}

var prepared = testenv.Template{Prepare: func(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE TABLE ready (n int); INSERT INTO ready VALUES (7)")
	return errors.Join(err, conn.Close(ctx))
}}

func TestTemplateCopiesAreIndependent(t *testing.T) {
	one := connect(t, prepared.Postgres(t), pgx.QueryExecModeExec)
	_, err := one.Exec(t.Context(), "UPDATE ready SET n = 8")
	require.NoError(t, err)
	two := connect(t, prepared.Postgres(t), pgx.QueryExecModeExec)
	require.Equal(t, "7", value(t, two, "SELECT n::text FROM ready"))
}

// Two connections share one server connection only when it is pooled by transaction, and named statements of one are
// then unknown to the other.
func TestPgBouncerPoolsByTransaction(t *testing.T) {
	direct := testenv.Postgres(t)
	through := testenv.PgBouncer(t, direct)
	requireLoopback(t, through)
	require.NotEqual(t, direct, through)

	a := connect(t, through, pgx.QueryExecModeExec)
	b := connect(t, through, pgx.QueryExecModeExec)
	const pid = "SELECT pg_backend_pid()::text"
	require.Equal(t, value(t, a, pid), value(t, b, pid), "idle clients share a server connection")

	tx, err := a.Begin(t.Context())
	require.NoError(t, err)
	var held string
	require.NoError(t, tx.QueryRow(t.Context(), pid).Scan(&held))
	require.NotEqual(t, held, value(t, b, pid), "a transaction has its server connection alone")
	require.NoError(t, tx.Rollback(t.Context()))
}

func TestMailpitKeepsMessages(t *testing.T) {
	smtpURL, apiURL := testenv.Mailpit(t)
	requireLoopback(t, smtpURL)
	requireLoopback(t, apiURL)
	u, err := url.Parse(smtpURL)
	require.NoError(t, err)
	require.NoError(t, smtp.SendMail(u.Host, nil, "from@example.test", []string{"to@example.test"},
		[]byte("From: from@example.test\r\nTo: to@example.test\r\nSubject: one approval waits\r\n\r\nHello.\r\n")))

	var list struct {
		Messages []struct {
			Subject string
			To      []struct{ Address string }
		} `json:"messages"`
	}
	require.NoError(t, json.Unmarshal(get(t, apiURL+"/api/v1/messages"), &list))
	require.Len(t, list.Messages, 1)
	require.Equal(t, "one approval waits", list.Messages[0].Subject)
	require.Equal(t, "to@example.test", list.Messages[0].To[0].Address)
}

func get(t *testing.T, target string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return body
}

func TestChromiumRendersAPage(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<p id="p">before</p><script>document.getElementById("p").textContent = "aft" + "er"</script>`)
	}))
	defer page.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args := append([]string{"--user-data-dir=" + t.TempDir(), "--dump-dom"}, testenv.ChromiumFlags...)
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, testenv.Chromium(t), append(args, page.URL)...)
	cmd.Stderr = &stderr
	dom, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	require.Contains(t, string(dom), `<p id="p">after</p>`)
}

func TestOctokitExamples(t *testing.T) {
	examples := testenv.OctokitExamples(t)
	require.Len(t, examples, 329)
	events := map[string]bool{}
	for _, e := range examples {
		require.True(t, json.Valid(e.Payload), e.Event)
		events[e.Event] = true
	}
	require.Len(t, events, 58)
	require.True(t, events["issues"] && events["pull_request"] && events["push"])
}

// TestServicesEndWithAKilledTest runs this test binary as a child that starts every kind of service, kills it, and
// waits for their ports to close and their directories to go.
func TestServicesEndWithAKilledTest(t *testing.T) {
	if os.Getenv("TESTENV_CHILD") != "" {
		dsn := testenv.Postgres(t)
		smtpURL, _ := testenv.Mailpit(t)
		_, err := os.Stdout.WriteString(strings.Join([]string{"up", dsn, testenv.PgBouncer(t, dsn), smtpURL}, " ") + "\n")
		require.NoError(t, err)
		<-t.Context().Done() // until it is killed
		return
	}
	tmp := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(tmp), 0o755)) // the database user passes through
	require.NoError(t, os.Chmod(tmp, 0o777))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestServicesEndWithAKilledTest$")
	child.Env = append(os.Environ(), "TESTENV_CHILD=1", "TMPDIR="+tmp, testenv.PostgresVariable+"=")
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())

	var up string
	buf := make([]byte, 4096)
	for !strings.HasSuffix(up, "\n") {
		n, err := out.Read(buf)
		up += string(buf[:n])
		require.NoError(t, err, up)
	}
	fields := strings.Fields(up)
	require.Len(t, fields, 4, up)
	data := value(t, connect(t, fields[1], pgx.QueryExecModeExec), "SHOW data_directory")
	require.DirExists(t, data)
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()

	for _, raw := range fields[1:] {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			conn, err := net.DialTimeout("tcp", u.Host, time.Second)
			if err == nil {
				conn.Close()
			}
			return err != nil
		}, 20*time.Second, 20*time.Millisecond, "%s still listens", u.Scheme)
	}
	require.Eventually(t, func() bool {
		left, err := filepath.Glob(filepath.Join(tmp, "holdpoint-*"))
		_, gone := os.Stat(data)
		return err == nil && len(left) == 0 && errors.Is(gone, os.ErrNotExist)
	}, 20*time.Second, 20*time.Millisecond, "directories are left behind")
}
