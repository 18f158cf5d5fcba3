package notify

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/big"
	"mime"
	"mime/quotedprintable"
	"net"
	netmail "net/mail"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/egress"
)

// relayServer is a small SMTP server. answers replaces its reply to a command, by the command's first word; "." is the
// end of the data, and the reply "close" closes the connection instead.
type relayServer struct {
	net.Listener
	conf     *tls.Config // offered by STARTTLS; nil means not offered
	answers  map[string]string
	wg       sync.WaitGroup
	mu       sync.Mutex
	commands []string
	data     []string
	secure   []bool // whether the data came over TLS
}

func startRelay(t *testing.T, conf *tls.Config, implicit bool, answers map[string]string) *relayServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &relayServer{Listener: l, answers: answers}
	if implicit {
		s.Listener = tls.NewListener(l, conf)
	} else {
		s.conf = conf
	}
	s.wg.Go(func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(c, implicit) })
		}
	})
	t.Cleanup(func() {
		_ = s.Listener.Close()
		s.wg.Wait()
	})
	return s
}

func (s *relayServer) serve(c net.Conn, secure bool) {
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	r := bufio.NewReader(c)
	say := func(text string) { _, _ = fmt.Fprintf(c, "%s\r\n", text) }
	say("220 relay.example ESMTP")
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		word := strings.ToUpper(strings.Fields(line + " x")[0])
		s.mu.Lock()
		s.commands = append(s.commands, line)
		s.mu.Unlock()
		if a, ok := s.answers[word]; ok {
			if a == "close" {
				return
			}
			say(a)
			continue
		}
		switch word {
		case "EHLO":
			say("250-relay.example")
			if s.conf != nil && !secure {
				say("250-STARTTLS")
			}
			say("250-AUTH PLAIN")
			say("250 8BITMIME")
		case "STARTTLS":
			say("220 go ahead")
			c = tls.Server(c, s.conf)
			r, secure = bufio.NewReader(c), true
		case "AUTH":
			say("235 welcome")
		case "DATA":
			say("354 go ahead")
			text, err := readData(r)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.data, s.secure = append(s.data, text), append(s.secure, secure)
			s.mu.Unlock()
			if a := s.answers["."]; a == "close" {
				return
			} else if a != "" {
				say(a)
				continue
			}
			say("250 taken")
		case "QUIT":
			say("221 bye")
			return
		default:
			say("250 fine")
		}
	}
}

func readData(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if line == ".\r\n" {
			return b.String(), nil
		}
		b.WriteString(strings.TrimPrefix(line, "."))
	}
}

func (s *relayServer) seen() (commands, data []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.commands...), append([]string(nil), s.data...)
}

// certificate makes a certificate for 127.0.0.1 and the pool that trusts it.
func certificate(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}, pool
}

func mailTo(s *relayServer, scheme, query string) SMTP {
	return SMTP{
		URL: scheme + "://" + s.Addr().String() + query, From: "Holdpoint <holdpoint@acme.example>", Timeout: 2 * time.Second,
		Guard: &egress.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	}
}

func letter() Message {
	return Message{
		ID: "5a7c1f0e-1111-4222-8333-944445555666", To: "Ana <ana@acme.example>", Subject: "Freigabe nötig", Text: "Grüße\n.\nEnde",
		Timestamp: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	}
}

func TestSMTPDelivers(t *testing.T) {
	conf, pool := certificate(t)
	tests := map[string]struct {
		scheme, query string
		conf          *tls.Config
		implicit      bool
	}{
		"STARTTLS":          {"smtp", "", conf, false},
		"implicit TLS":      {"smtps", "", conf, true},
		"plain on loopback": {"smtp", "?tls=none", nil, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := startRelay(t, tc.conf, tc.implicit, nil)
			m := mailTo(s, tc.scheme, tc.query)
			m.roots, m.Username, m.Password = pool, "holdpoint", "hush"
			require.NoError(t, m.Send(context.Background(), letter()))

			commands, data := s.seen()
			require.Len(t, data, 1)
			require.Equal(t, tc.conf != nil, s.secure[0])
			require.Contains(t, commands, "AUTH PLAIN "+base64.StdEncoding.EncodeToString([]byte("\x00holdpoint\x00hush")))
			require.Contains(t, strings.Join(commands, "\n"), "MAIL FROM:<holdpoint@acme.example>")
			require.Contains(t, strings.Join(commands, "\n"), "RCPT TO:<ana@acme.example>")

			got, err := netmail.ReadMessage(strings.NewReader(data[0]))
			require.NoError(t, err)
			subject, err := new(mime.WordDecoder).DecodeHeader(got.Header.Get("Subject"))
			require.NoError(t, err)
			require.Equal(t, "Freigabe nötig", subject)
			require.Equal(t, "<5a7c1f0e-1111-4222-8333-944445555666@acme.example>", got.Header.Get("Message-ID"))
			require.Equal(t, "auto-generated", got.Header.Get("Auto-Submitted"))
			require.Equal(t, "Sun, 01 Mar 2026 12:00:00 +0000", got.Header.Get("Date"))
			require.Contains(t, got.Header.Get("Content-Type"), "text/plain; charset=UTF-8")
			require.Equal(t, "quoted-printable", got.Header.Get("Content-Transfer-Encoding"))
			text, err := io.ReadAll(quotedprintable.NewReader(got.Body))
			require.NoError(t, err)
			require.Equal(t, "Grüße\n.\nEnde", strings.TrimRight(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n"))
		})
	}
}

func TestSMTPHeadersCannotBeInjected(t *testing.T) {
	s := startRelay(t, nil, false, nil)
	m := letter()
	m.Subject = "Hello\r\nBcc: eve@evil.example\r\n\r\nbody\u2028x"
	require.NoError(t, mailTo(s, "smtp", "?tls=none").Send(context.Background(), m))
	_, data := s.seen()
	got, err := netmail.ReadMessage(strings.NewReader(data[0]))
	require.NoError(t, err)
	require.Empty(t, got.Header.Get("Bcc"))
	subject, err := new(mime.WordDecoder).DecodeHeader(got.Header.Get("Subject"))
	require.NoError(t, err)
	require.Equal(t, "Hello  Bcc: eve@evil.example    body x", subject)

	for _, to := range []string{"", "nobody", "a@b.example\r\nRCPT TO:<eve@evil.example>", "a@b.example, c@d.example"} {
		m := letter()
		m.To = to
		var p *Permanent
		require.ErrorAs(t, mailTo(s, "smtp", "?tls=none").Send(context.Background(), m), &p, to)
	}
	m = letter()
	m.ID = "x>\r\nBcc: eve@evil.example"
	var p *Permanent
	require.ErrorAs(t, mailTo(s, "smtp", "?tls=none").Send(context.Background(), m), &p)
	_, data = s.seen()
	require.Len(t, data, 1)
}

func TestSMTPAnswers(t *testing.T) {
	tests := map[string]struct {
		answers   map[string]string
		ok        bool
		permanent bool
	}{
		"greylisted":              {map[string]string{"RCPT": "451 SECRET come back"}, false, false},
		"no such person":          {map[string]string{"RCPT": "550 5.1.1 SECRET unknown"}, false, true},
		"sender refused":          {map[string]string{"MAIL": "553 SECRET"}, false, false},
		"data refused":            {map[string]string{"DATA": "554 SECRET"}, false, true},
		"content refused":         {map[string]string{".": "554 SECRET"}, false, true},
		"content refused for now": {map[string]string{".": "452 SECRET"}, false, false},
		"lost after the dot":      {map[string]string{".": "close"}, false, false},
		"lost before":             {map[string]string{"MAIL": "close"}, false, false},
		"login refused":           {map[string]string{"AUTH": "535 SECRET"}, false, false},
		"reset refused":           {map[string]string{"RSET": "500 SECRET"}, true, false},
		"lost after delivery":     {map[string]string{"RSET": "close"}, true, false},
		"quit refused":            {map[string]string{"QUIT": "close"}, true, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := startRelay(t, nil, false, tc.answers)
			m := mailTo(s, "smtp", "?tls=none")
			m.Username, m.Password = "holdpoint", "SECRET"
			err := m.Send(context.Background(), letter())
			if tc.ok {
				require.NoError(t, err)
				return
			}
			var e *holdpoint.Error
			require.ErrorAs(t, err, &e)
			var final *Permanent
			require.Equal(t, tc.permanent, errors.As(err, &final), err)
			require.NotContains(t, err.Error(), "SECRET")
			require.NotContains(t, err.Error(), "ana@")
		})
	}
}

func TestSMTPInsistsOnTLS(t *testing.T) {
	conf, pool := certificate(t)
	without := startRelay(t, nil, false, nil)
	with := startRelay(t, conf, false, nil)

	m := mailTo(without, "smtp", "")
	m.roots = pool
	require.ErrorIs(t, m.Send(context.Background(), letter()), &holdpoint.Error{Code: holdpoint.CodeUnavailable})

	require.ErrorContains(t, mailTo(with, "smtp", "").Send(context.Background(), letter()), "certificate")

	for _, s := range []*relayServer{without, with} {
		commands, data := s.seen()
		require.Empty(t, data)
		require.NotContains(t, strings.Join(commands, "\n"), "MAIL")
	}
	for _, bad := range []string{
		"smtp://mail.acme.example:587?tls=none", "smtp://10.0.0.1:25?tls=none", "smtps://127.0.0.1:465?tls=none",
		"smtp://127.0.0.1:25?tls=off", "smtp://u:SECRET@mail.acme.example", "http://mail.acme.example", "smtp://", "mail",
	} {
		err := SMTP{URL: bad, From: "a@b.example"}.Send(context.Background(), letter())
		require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeInvalidPolicy}, bad)
		require.NotContains(t, err.Error(), "SECRET")
	}
	require.ErrorIs(t, SMTP{URL: "smtps://127.0.0.1", From: "nobody"}.Send(context.Background(), letter()),
		&holdpoint.Error{Code: holdpoint.CodeInvalidPolicy})
}

func TestSMTPObeysGuardAndContext(t *testing.T) {
	s := startRelay(t, nil, false, nil)
	m := mailTo(s, "smtp", "?tls=none")
	m.Guard = nil
	require.ErrorContains(t, m.Send(context.Background(), letter()), "loopback address")

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	m = mailTo(&relayServer{Listener: silent}, "smtp", "?tls=none")
	m.Timeout = time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	require.ErrorIs(t, m.Send(ctx, letter()), &holdpoint.Error{Code: holdpoint.CodeUnavailable})
	require.Less(t, time.Since(start), 10*time.Second)
}
