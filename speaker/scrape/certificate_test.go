package scrape

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve returns the certificate that a listener offers, and the protocol of its answers.
func serve(t *testing.T, config *tls.Config) (*x509.Certificate, string) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Listener = tls.NewListener(server.Listener, config)
	server.Start()
	defer server.Close()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	r, err := (&http.Client{Transport: transport}).Get("https://" + server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	return r.TLS.PeerCertificates[0], r.Proto
}

func TestSelfSigned(t *testing.T) {
	config, err := SelfSigned("node-1", netip.MustParseAddr("192.0.2.10"))
	if err != nil {
		t.Fatal(err)
	}
	cert, protocol := serve(t, config)
	if protocol != "HTTP/1.1" {
		t.Errorf("the protocol is %s", protocol)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	for _, name := range []string{"node-1", "192.0.2.10"} {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: time.Now().AddDate(5, 0, 0)}); err != nil {
			t.Errorf("for %s in five years: %v", name, err)
		}
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "node-2"}); err == nil {
		t.Error("it is valid for another node")
	}
	again, err := SelfSigned("node-1", netip.MustParseAddr("192.0.2.10"))
	if err != nil {
		t.Fatal(err)
	}
	if other, _ := serve(t, again); other.Equal(cert) {
		t.Error("two processes have one certificate")
	}
}

// write replaces the files by a new certificate for a name.
func write(t *testing.T, dir, name string) {
	t.Helper()
	config, err := SelfSigned(name, netip.MustParseAddr("192.0.2.10"))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := config.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, "tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHandshakes: a client that makes many handshakes is refused before they cost anything, and no other client is.
func TestHandshakes(t *testing.T) {
	signed, err := SelfSigned("node-1", netip.MustParseAddr("192.0.2.10"))
	if err != nil {
		t.Fatal(err)
	}
	made, at := 0, time.Unix(1e9, 0)
	handshakes := newBudget(handshakesOfClient, handshakesOfAll)
	handshakes.now = func() time.Time { return at }
	server := config(func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		made++
		return signed.GetCertificate(hello)
	}, handshakes)
	connect := func(client string) error {
		near, far := net.Pipe()
		defer near.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer far.Close()
			_ = tls.Server(from{far, client}, server).Handshake() // the client has the error
		}()
		err := tls.Client(near, &tls.Config{InsecureSkipVerify: true}).Handshake()
		<-done
		return err
	}
	for i := range burst {
		if err := connect(fmt.Sprintf("192.0.2.7:%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := connect("192.0.2.7:40000"); err == nil || made != burst {
		t.Errorf("one more handshake: %v, with %d certificates", err, made)
	}
	if err := connect(otherBucket(handshakes, "192.0.2.7:0")); err != nil {
		t.Errorf("another client: %v", err)
	}
	at = at.Add(time.Second)
	if err := connect("192.0.2.7:40001"); err != nil {
		t.Errorf("after a second: %v", err)
	}
}

// from is a connection from a client.
type from struct {
	net.Conn
	client string
}

func (f from) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(f.client))
}

// TestFromFiles: replaced files take effect; broken ones leave the certificate as it is, with one line of the log.
func TestFromFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if _, err := FromFiles(cert, key, logger).GetCertificate(nil); err == nil ||
		!strings.Contains(err.Error(), "--tls-cert-file "+cert) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without files: %v", err)
	}
	if n := strings.Count(log.String(), "no such file"); n != 1 {
		t.Errorf("without files it logs %d lines:\n%s", n, &log)
	}
	log.Reset()
	write(t, dir, "first")
	config := FromFiles(cert, key, logger)
	if cert, _ := serve(t, config); cert.Subject.CommonName != "first" {
		t.Errorf("it offers the certificate of %s", cert.Subject.CommonName)
	}

	at := time.Unix(1e9, 0)
	f := &files{cert: cert, key: key, log: logger, now: func() time.Time { return at }}
	want := func(name string) {
		t.Helper()
		have, err := f.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		if have.Leaf.Subject.CommonName != name {
			t.Errorf("it offers the certificate of %s, want %s", have.Leaf.Subject.CommonName, name)
		}
	}
	want("first")
	write(t, dir, "second")
	want("first")
	at = at.Add(readAgain)
	want("second")
	if err := os.WriteFile(key, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		at = at.Add(readAgain)
		want("second")
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "--tls-private-key-file "+key) {
		t.Errorf("the log has %q", text)
	}
	write(t, dir, "third")
	at = at.Add(readAgain)
	want("third")
}
