-- For the node that has the rows of a queue: no statement may write to rows that have been moved away. Citus locks the rows
-- for the end of their move on each node; a write that waits for that lock looks where they are afterwards. A transaction with
-- one snapshot would not see the move that it has waited for. All shards of a queue have one lock.
CREATE OR REPLACE FUNCTION pulse.stay_with_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a queue on Citus takes writes in READ COMMITTED transactions only; this one is %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'feature_not_supported';
    END IF;
    PERFORM lock_shard_metadata(5, ARRAY[TG_ARGV[0]::bigint]);  -- SHARE, as the writes that Citus plans
    IF NOT EXISTS (SELECT FROM pg_dist_placement p JOIN pg_dist_local_group g ON g.groupid = p.groupid
                   WHERE p.shardid = TG_ARGV[0]::bigint) THEN
        RAISE EXCEPTION 'Citus has moved this queue to another node' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    RETURN NULL;
END
$$;
