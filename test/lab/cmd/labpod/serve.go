package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/ironlb/ironlb/test/lab/probe"
)

// serve answers on every port of the lab's Pods until it is killed.
func serve(name string) error {
	http1, err := net.Listen("tcp", fmt.Sprintf(":%d", probe.PortHTTP))
	if err != nil {
		return err
	}
	stream, err := net.Listen("tcp", fmt.Sprintf(":%d", probe.PortStream))
	if err != nil {
		return err
	}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{Port: probe.PortUDP})
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	go func() {
		failed <- http.Serve(http1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, probe.Answer(name, addr(r.RemoteAddr))) // the client may be gone
		}))
	}()
	go func() { failed <- serveStreams(name, stream) }()
	go func() { failed <- serveUDP(name, udp) }()
	fmt.Println("serving")
	return <-failed
}

func serveStreams(name string, l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			lines := bufio.NewScanner(conn)
			for lines.Scan() {
				if _, err := io.WriteString(conn, probe.Answer(name, addr(conn.RemoteAddr().String()))); err != nil {
					return
				}
			}
		}()
	}
}

func serveUDP(name string, conn *net.UDPConn) error {
	buf := make([]byte, 1500)
	for {
		_, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		// A client that is gone gives an ICMP error on the next call at most.
		conn.WriteToUDPAddrPort([]byte(probe.Answer(name, from.Addr().Unmap().String())), from)
	}
}

func addr(hostport string) string {
	ap, err := netip.ParseAddrPort(hostport)
	if err != nil {
		return hostport
	}
	return ap.Addr().Unmap().String()
}
