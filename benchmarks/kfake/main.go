// kfake on one port, until it is stopped: PORT [DIRECTORY [sync]], in memory without a directory.
package main

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(port)}
	if len(os.Args) > 2 {
		options = append(options, kfake.DataDir(os.Args[2]))
	}
	if len(os.Args) > 3 {
		options = append(options, kfake.SyncWrites())
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		panic(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	<-stop
	cluster.Close()
}
