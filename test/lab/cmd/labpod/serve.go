package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

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
	echo, err := net.Listen("tcp", fmt.Sprintf(":%d", probe.PortEcho))
	if err != nil {
		return err
	}
	udp4, err := net.ListenUDP("udp4", &net.UDPAddr{Port: probe.PortUDP})
	if err != nil {
		return err
	}
	udp6, err := net.ListenUDP("udp6", &net.UDPAddr{Port: probe.PortUDP})
	if err != nil {
		return err
	}
	failed := make(chan error, 5)
	go func() { failed <- http.Serve(http1, handler(name)) }()
	go func() {
		failed <- serveLines(stream, func(client, _ string) string { return probe.Answer(name, client) })
	}()
	go func() {
		failed <- serveLines(echo, func(client, line string) string { return probe.Echo(name, client, line) })
	}()
	go func() { failed <- serveUDP4(name, udp4) }()
	go func() { failed <- serveUDP6(name, udp6) }()
	fmt.Println("serving")
	return <-failed
}

// serveLines answers each line of each connection.
func serveLines(l net.Listener, answer func(client, line string) string) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			client := addr(conn.RemoteAddr().String())
			lines := bufio.NewScanner(conn)
			for lines.Scan() {
				if _, err := io.WriteString(conn, answer(client, lines.Text())); err != nil {
					return
				}
			}
		}()
	}
}

// serveUDP4 and serveUDP6 answer from the destination address of the request: a machine may have several.
func serveUDP4(name string, udp *net.UDPConn) error {
	conn := ipv4.NewPacketConn(udp)
	if err := conn.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	for {
		_, asked, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		// If the client has closed its socket, at most the next call returns an ICMP error.
		conn.WriteTo(answer(name, from), &ipv4.ControlMessage{Src: asked.Dst}, from)
	}
}

func serveUDP6(name string, udp *net.UDPConn) error {
	conn := ipv6.NewPacketConn(udp)
	if err := conn.SetControlMessage(ipv6.FlagDst, true); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	for {
		_, asked, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		conn.WriteTo(answer(name, from), &ipv6.ControlMessage{Src: asked.Dst}, from) // as above
	}
}

func answer(name string, to net.Addr) []byte { return []byte(probe.Answer(name, addr(to.String()))) }

func addr(hostport string) string {
	ap, err := netip.ParseAddrPort(hostport)
	if err != nil {
		return hostport
	}
	return ap.Addr().Unmap().String()
}
